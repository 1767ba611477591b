package rpc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type toldEnd struct {
	rep *seqpb.AllocReply
	err error
}

func startAlloc(c *SeqConn, q *seqpb.AllocRequest) (*Started, chan toldEnd) {
	ends := make(chan toldEnd, 2)
	return c.StartAlloc(time.Now().Add(time.Minute), q, func(rep *seqpb.AllocReply, err error) { ends <- toldEnd{rep, err} }), ends
}

func TestAStartedCallTellsItsOutcomeOnce(t *testing.T) {
	s, seq := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	if s, _ := startAlloc(c, &seqpb.AllocRequest{Uids: []uint64{7}}); s != nil {
		t.Fatal("a call was started on a connection that is not up")
	}
	if _, err := c.Alloc(timeout(t, 20*time.Second), &seqpb.AllocRequest{Uids: []uint64{7}}); err != nil {
		t.Fatal(err)
	}
	call, ends := startAlloc(c, &seqpb.AllocRequest{Uids: []uint64{7}})
	if call == nil {
		t.Fatal("it was not started")
	}
	if e := <-ends; e.err != nil || e.rep.First[0] != 7 {
		t.Fatalf("%+v", e)
	}
	if call.Abandon() {
		t.Error("a call that was answered was taken back")
	}

	// One that hangs is taken back, and the server knows.
	call, ends = startAlloc(c, &seqpb.AllocRequest{Space: "wait"})
	<-seq.entered
	if !call.Abandon() || call.Abandon() {
		t.Error("a call was not taken back once")
	}
	select {
	case err := <-seq.ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-timeout(t, 20*time.Second).Done():
		t.Error("the server was not told")
	}

	// One that hangs when the connection is lost has an unknown outcome.
	_, lost := startAlloc(c, &seqpb.AllocRequest{Space: "wait"})
	<-seq.entered
	c.frames.up().close()
	var e *Error
	if l := <-lost; !errors.As(l.err, &e) || e.NotSent || e.Answered || e.Code != seqpb.Code_CODE_UNKNOWN_RESULT {
		t.Errorf("%+v", l)
	}
	if len(ends) > 0 || len(lost) > 0 {
		t.Error("told twice, or after it was taken back")
	}
}
