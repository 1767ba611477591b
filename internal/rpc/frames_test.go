package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc/frame"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

func frameOf(k frame.Kind, number uint64, body []byte) []byte {
	b := append(frame.Begin(nil, k, 0, number), body...)
	frame.Finish(b, 0)
	return b
}

// frameAnnounced is a head that promises a body.
func frameAnnounced(k frame.Kind, number uint64, size uint32) []byte {
	b := frame.Begin(nil, k, 0, number)
	binary.LittleEndian.PutUint32(b, size)
	return b
}

// inlineSeq is a fakeSeq that says when it waits.
type inlineSeq struct {
	*fakeSeq
	ended chan error // of contexts that calls waited with
}

func (s *inlineSeq) AllocInline(q *seqpb.AllocRequest, rep *seqpb.AllocReply, wait func() context.Context) error {
	ctx := context.Background()
	if q.Space != "" {
		ctx = wait()
	}
	r, err := s.Alloc(ctx, q)
	if err != nil {
		if ctx.Err() != nil {
			s.ended <- err
		}
		return err
	}
	rep.First = append(rep.First, r.First...)
	rep.MapVersion = r.MapVersion
	return nil
}

func (s *inlineSeq) CurrentInline(q *seqpb.CurrentRequest, rep *seqpb.CurrentReply, _ func() context.Context) error {
	rep.Current = append(rep.Current, q.Uids...)
	return nil
}

func startInline(t *testing.T, o Options) (*Server, *inlineSeq) {
	t.Helper()
	seq := &inlineSeq{newFakeSeq(), make(chan error, 100)}
	s, err := Listen("127.0.0.1:0", Services{Seq: seq}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
	})
	return s, seq
}

// overFrames tells whether the connection's hot calls go over lean frames now.
func (c *SeqConn) overFrames() bool {
	c.frames.mu.Lock()
	defer c.frames.mu.Unlock()
	return c.frames.conn != nil && c.frames.conn.usable.Load()
}

func TestHotCallsGoOverLeanFrames(t *testing.T) {
	s, _ := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	ctx := timeout(t, 5*time.Second)
	for _, n := range []int{1, 10, inlineKeysMax + 1, 100_000} {
		uids := make([]uint64, n)
		for i := range uids {
			uids[i] = uint64(i) << 20
		}
		a, err := c.Alloc(ctx, &seqpb.AllocRequest{Uids: uids})
		if err != nil || len(a.First) != n || a.First[n-1] != uids[n-1] {
			t.Fatalf("%d keys: %v", n, err)
		}
		r, err := c.Current(ctx, &seqpb.CurrentRequest{Uids: uids})
		if err != nil || len(r.Current) != n || r.Current[n-1] != uids[n-1] {
			t.Fatalf("%d keys: %v", n, err)
		}
	}
	if !c.overFrames() {
		t.Error("they did not go over lean frames")
	}
}

func TestAServerWithoutLeanFramesIsCalledByGRPC(t *testing.T) {
	f := start(t, Options{noFrames: true})
	c := dialSeq(t, f.addr)
	for range 3 {
		r, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: []uint64{7}})
		if err != nil || r.First[0] != 7 {
			t.Fatalf("%v %v", r, err)
		}
	}
	if r, err := c.Current(timeout(t, 5*time.Second), &seqpb.CurrentRequest{Uids: []uint64{7}}); err != nil || r.Current[0] != 7 {
		t.Fatalf("%v %v", r, err)
	}
	if c.overFrames() {
		t.Fatal("a connection of lean frames with a server that has none")
	}
	// The server is replaced by a newer one, and after a while it is asked again.
	if err := f.Stop(timeout(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f.addr, Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(timeout(t, time.Second))
	c.frames.mu.Lock()
	if left := time.Until(c.frames.noFrames); left <= 0 || left > noFramesFor {
		t.Errorf("it is asked again in %v", left)
	}
	c.frames.noFrames = time.Time{}
	c.frames.mu.Unlock()
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: []uint64{7}}); err != nil || !c.overFrames() {
		t.Errorf("the new server: %v, over frames %v", err, c.overFrames())
	}
}

func TestACallThatWaitsHoldsUpNoOther(t *testing.T) {
	s, seq := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	ctx := timeout(t, 10*time.Second)
	var wg sync.WaitGroup
	const waiting = 20
	for i := range waiting {
		wg.Go(func() {
			if r, err := c.Alloc(ctx, &seqpb.AllocRequest{Space: "wait", Uids: []uint64{uint64(i)}}); err != nil || r.First[0] != uint64(i) {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	for range waiting {
		<-seq.entered
	}
	for i := range uint64(1000) {
		if r, err := c.Alloc(ctx, &seqpb.AllocRequest{Uids: []uint64{i}}); err != nil || r.First[0] != i {
			t.Fatalf("%v %v", r, err)
		}
	}
	close(seq.release)
	wg.Wait()
}

func TestManyCallersShareAConnection(t *testing.T) {
	s, _ := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	ctx := timeout(t, 30*time.Second)
	var wg sync.WaitGroup
	for i := range uint64(32) {
		wg.Go(func() {
			for j := range uint64(200) {
				uids := make([]uint64, 1+(i+j)%700)
				for k := range uids {
					uids[k] = i<<40 | j<<20 | uint64(k)
				}
				r, err := c.Alloc(ctx, &seqpb.AllocRequest{Uids: uids})
				if err != nil || len(r.First) != len(uids) || r.First[0] != uids[0] || r.First[len(uids)-1] != uids[len(uids)-1] {
					t.Errorf("caller %d, call %d: %d numbers, %v", i, j, len(r.GetFirst()), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestACancelledCallEndsInItsHandler(t *testing.T) {
	s, seq := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := c.Alloc(ctx, &seqpb.AllocRequest{Space: "wait"})
		got <- err
	}()
	<-seq.entered
	cancel()
	var e *Error
	if err := <-got; !errors.As(err, &e) || e.NotSent || e.Answered || !errors.Is(err, context.Canceled) {
		t.Errorf("caller: %#v", e)
	}
	if err := <-seq.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("handler: %v", err)
	}
	serves(t, s.Addr().String())
}

func TestALostConnectionEndsItsCallsOnBothSides(t *testing.T) {
	s, seq := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	got := make(chan error, 1)
	go func() {
		_, err := c.Alloc(timeout(t, 10*time.Second), &seqpb.AllocRequest{Space: "wait"})
		got <- err
	}()
	<-seq.entered
	c.frames.mu.Lock()
	lost := c.frames.conn
	c.frames.mu.Unlock()
	lost.close()
	var e *Error
	if err := <-got; !errors.As(err, &e) || e.NotSent || e.Answered || e.Code != seqpb.Code_CODE_UNKNOWN_RESULT {
		t.Errorf("caller: %#v", e)
	}
	if err := <-seq.ended; !errors.Is(err, context.Canceled) {
		t.Errorf("handler: %v", err)
	}
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{}); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestACallWhoseTimeIsOverIsNotSent(t *testing.T) {
	s, seq := startInline(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := dialSeq(t, s.Addr().String()).Alloc(ctx, &seqpb.AllocRequest{})
	if !NotSent(err) || !errors.Is(err, context.Canceled) || seq.executed.Load() != 0 {
		t.Errorf("%v, %d executed", err, seq.executed.Load())
	}
}

func TestALeanFrameAboveTheLimitCostsItsCallOnly(t *testing.T) {
	s, _ := startInline(t, Options{MaxMessageBytes: 100_000})
	c := dialSeq(t, s.Addr().String())
	large := make([]uint64, 200_000)
	for i := range large {
		large[i] = 1 << 60
	}
	var e *Error
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: large}); !errors.As(err, &e) || !e.Answered || e.Code != seqpb.Code_CODE_BUSY {
		t.Errorf("%v", err)
	}
	before := c.frames.conn
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: large[:5]}); err != nil || c.frames.conn != before {
		t.Errorf("the next call: %v, on another connection: %v", err, c.frames.conn != before)
	}
}

func TestPromisedLeanFramesTakeLittleMemory(t *testing.T) {
	s, _ := startInline(t, Options{})
	before := heap()
	var crowded int
	for i := range 200 {
		c := rawDial(t, s.Addr().String())
		c.Write(append([]byte(frame.Preface), frameAnnounced(frame.Alloc, uint64(i), DefaultMaxMessageBytes)...))
		if i < budgetMessages {
			// It has the room once it has been asked for.
			for s.trans.frames.limits.receiving.Load() < int64(i+1)*DefaultMaxMessageBytes {
				time.Sleep(time.Millisecond)
			}
			continue
		}
		answer := make([]byte, len(frame.Hello)+frame.HeadBytes)
		if _, err := io.ReadFull(c, answer); err != nil {
			t.Fatal(err)
		}
		if h, err := frame.ParseHead(answer[len(frame.Hello):]); err == nil && h.Kind == frame.Status {
			crowded++
		}
	}
	if crowded != 200-budgetMessages {
		t.Errorf("%d were refused", crowded)
	}
	if after := heap(); after > before+32<<20 {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
	serves(t, s.Addr().String())
}

func TestAFrameThatDoesNotComeToItsEndCostsItsConnection(t *testing.T) {
	s, _ := startInline(t, Options{HandshakeTimeout: 200 * time.Millisecond})
	if !closesOn(t, s.Addr().String(), func(c net.Conn) {
		c.Write(append([]byte(frame.Preface), frameAnnounced(frame.Alloc, 1, 100)...))
	}) {
		t.Error("it was left open")
	}
	// An idle connection stays.
	c := dialSeq(t, s.Addr().String())
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{}); err != nil {
		t.Fatal(err)
	}
	first := c.frames.conn
	time.Sleep(500 * time.Millisecond)
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{}); err != nil || c.frames.conn != first {
		t.Errorf("%v, on another connection: %v", err, c.frames.conn != first)
	}
}

// A peer that takes no answers is not read from either, and is given up.
func TestAPeerThatTakesNoAnswersCostsItsConnection(t *testing.T) {
	s, seq := startInline(t, Options{HandshakeTimeout: 500 * time.Millisecond})
	c := rawDial(t, s.Addr().String())
	c.Write([]byte(frame.Preface))
	uids := frame.AppendAllocRequest(nil, &seqpb.AllocRequest{Uids: make([]uint64, 500)})
	request, sent := frameOf(frame.Alloc, 1, uids), 0
	for {
		n, err := c.Write(request)
		if sent += n; err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection was kept")
			}
			break
		}
		if sent > 1<<30 {
			t.Fatal("1 GB was taken, and no answer read")
		}
	}
	t.Logf("%d calls were executed", seq.executed.Load())
	serves(t, s.Addr().String())
}

// silent is a server that greets and then does what it is told.
func silent(t *testing.T, then func(c net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if _, err := io.ReadFull(c, make([]byte, len(frame.Preface))); err == nil {
					io.WriteString(c, frame.Hello)
					then(c)
				}
			})
		}
	})
	return ln.Addr().String()
}

func TestCallsEndInTimeAtAServerThatTakesNothing(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	addr := silent(t, func(net.Conn) { <-release })
	c := dialSeq(t, addr)
	uids := make([]uint64, 100_000)
	for i := range uids {
		uids[i] = 1 << 62
	}
	ctx := timeout(t, 300*time.Millisecond)
	var wg sync.WaitGroup
	before := heap()
	for range 100 { // of 1 MB each
		wg.Go(func() {
			if _, err := c.Alloc(ctx, &seqpb.AllocRequest{Uids: uids}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	begin := time.Now()
	wg.Wait()
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("they took %v", d)
	}
	if after := heap(); after > before+4*unwrittenBytesMax {
		t.Errorf("the heap grew from %d to %d", before, after)
	}
}

func TestAPeerThatFallsSilentIsGivenUp(t *testing.T) {
	release := make(chan struct{})
	addr := silent(t, func(net.Conn) { <-release })
	defer close(release)
	c := dialSeq(t, addr)
	got := make(chan error, 1)
	go func() {
		_, err := c.Alloc(timeout(t, 10*time.Second), &seqpb.AllocRequest{})
		got <- err
	}()
	var conn *framesClient
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
		c.frames.mu.Lock()
		conn = c.frames.conn
		c.frames.mu.Unlock()
		if conn != nil {
			conn.mu.Lock()
			waiting = len(conn.waiters)
			conn.mu.Unlock()
		}
	}
	conn.check() // as after a while
	conn.check() // and after the time that an answer to a ping may take
	var e *Error
	if err := <-got; !errors.As(err, &e) || e.NotSent || e.Answered || !errors.Is(err, errPeerSilent) {
		t.Errorf("%v", err)
	}

	s, _ := startInline(t, Options{})
	c = dialSeq(t, s.Addr().String())
	for range 3 {
		if _, err := c.Current(timeout(t, 5*time.Second), &seqpb.CurrentRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	conn = c.frames.conn
	conn.check()
	heard := conn.heard.Load()
	conn.check()
	for conn.heard.Load() == heard { // the Pong comes
		time.Sleep(time.Millisecond)
	}
	conn.check()
	if !conn.usable.Load() {
		t.Error("a peer that answers pings was given up")
	}
}

func TestWhatIsNotAnAnswerCostsTheConnection(t *testing.T) {
	reply, err := frame.AppendAllocReply(nil, &seqpb.AllocReply{First: []uint64{1}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"garbage":                    bytes.Repeat([]byte{0x55}, 100),
		"a client's frame":           frameOf(frame.Alloc, 1, nil),
		"a reply cut off":            frameOf(frame.Reply, 1, reply)[:frame.HeadBytes+1],
		"a reply of another message": frameOf(frame.Reply, 1, []byte{0xff, 0xff, 0xff}),
		"a reply of 4 GB":            frameAnnounced(frame.Reply, 1, 1<<32-1),
		"a failure with status OK":   frameOf(frame.Status, 1, []byte("fine")),
		"an answer to nobody":        frameOf(frame.Reply, 99, reply),
		"nothing":                    nil,
	} {
		addr := silent(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, frame.HeadBytes))
			c.Write(b)
		})
		var e *Error
		if _, err := dialSeq(t, addr).Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{}); !errors.As(err, &e) || e.NotSent || e.Answered || e.Code != seqpb.Code_CODE_UNKNOWN_RESULT {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

func TestWhatAStoppingServerDidNotBeginIsNotSent(t *testing.T) {
	for name, b := range map[string][]byte{
		"one by one":   frameOf(frame.Unprocessed, 1, nil),
		"all together": frameOf(frame.End, 0, nil),
	} {
		addr := silent(t, func(c net.Conn) {
			io.ReadFull(c, make([]byte, frame.HeadBytes))
			c.Write(b)
			io.Copy(io.Discard, c)
		})
		c := dialSeq(t, addr)
		if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{}); !NotSent(err) {
			t.Errorf("%s: %v", name, err)
		}
		c.frames.mu.Lock()
		first := c.frames.conn
		c.frames.mu.Unlock()
		for first.usable.Load() {
			time.Sleep(time.Millisecond)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A guard against work that creeps back in: a warm call allocates little on both
// sides together, and the buffers of a connection are used again.
func TestALeanCallAllocatesLittle(t *testing.T) {
	s, _ := startInline(t, Options{})
	c := dialSeq(t, s.Addr().String())
	ctx := timeout(t, 30*time.Second)
	q := &seqpb.CurrentRequest{Space: "uid", Uids: []uint64{1}, TimeoutMs: 90}
	n := testing.AllocsPerRun(300, func() {
		if _, err := c.Current(ctx, q); err != nil {
			t.Fatal(err)
		}
	})
	if n > 5 { // two of them are the reply
		t.Errorf("%v allocations for a call", n)
	}
}
