package rpc

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	kitex "github.com/cloudwego/kitex/client"
	kitextransport "github.com/cloudwego/kitex/transport"
	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/internal/rpc/rpctest"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb/seq"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(rpctest.IgnoreKitex(),
		// Of the TTHeader client, which only this test uses.
		goleak.IgnoreAnyFunction("github.com/cloudwego/kitex/pkg/loadbalance/lbcache.(*BalancerFactory).watcher"),
		goleak.IgnoreAnyFunction("github.com/cloudwego/netpoll.(*defaultPoll).Wait"))...)
}

// fakeSeq answers by the space's name.
type fakeSeq struct {
	entered   chan struct{}
	release   chan struct{}
	executed  atomic.Int64
	watchDone chan error
	pushed    atomic.Uint64 // the last number that WatchKeys could get rid of
}

func newFakeSeq() *fakeSeq {
	return &fakeSeq{entered: make(chan struct{}, 1000), release: make(chan struct{}), watchDone: make(chan error, 10)}
}

func (f *fakeSeq) Alloc(ctx context.Context, q *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	f.executed.Add(1)
	switch q.Space {
	case "wait":
		f.entered <- struct{}{}
		select {
		case <-f.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "busy":
		return nil, Errorf(seqpb.Code_CODE_BUSY, "the queue is full: try later")
	case "refused":
		return nil, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "count 0: want 1 or more")
	case "not-ready":
		return nil, Errorf(seqpb.Code_CODE_NOT_READY, "no lease yet")
	case "plain":
		return nil, errors.New("something else")
	case "panic":
		panic("a handler's bug")
	case "deadline":
		d, ok := ctx.Deadline()
		if !ok {
			return nil, errors.New("no deadline arrived")
		}
		return &seqpb.AllocReply{MapVersion: uint64(time.Until(d).Milliseconds())}, nil
	}
	return &seqpb.AllocReply{First: q.Uids}, nil
}

func (f *fakeSeq) Current(_ context.Context, q *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	return &seqpb.CurrentReply{Current: q.Uids}, nil
}

func (f *fakeSeq) Gaps(context.Context, *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	return &seqpb.GapsReply{}, nil
}

// WatchKeys says 1, 2, 3 … of key 0, as fast as it is taken.
func (f *fakeSeq) WatchKeys(_ *seqpb.WatchKeysRequest, s seqpb.Seq_WatchKeysServer) error {
	for v := uint64(1); ; v++ {
		if err := s.Send(&seqpb.KeyValues{Index: []uint32{0}, Current: []uint64{v}}); err != nil {
			return err
		}
		f.pushed.Store(v)
	}
}

func (f *fakeSeq) GetRoutes(context.Context, *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	return &seqpb.RouteTable{MapVersion: 7}, nil
}

func (f *fakeSeq) WatchRoutes(_ *seqpb.RoutesRequest, s seqpb.Seq_WatchRoutesServer) error {
	if err := s.Send(&seqpb.RouteTable{MapVersion: 1}); err != nil {
		return err
	}
	<-s.Context().Done()
	f.watchDone <- context.Cause(s.Context())
	return s.Context().Err()
}

// fakeStore echoes heartbeats.
type fakeStore struct{ done chan error }

func (f *fakeStore) Session(s seqpb.Store_SessionServer) error {
	for {
		m, err := s.Recv()
		if err != nil {
			f.done <- err
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := s.Send(&seqpb.SessionDown{Ack: &seqpb.HeartbeatAck{Number: m.Heartbeat.Number}}); err != nil {
			return err
		}
	}
}

func (f *fakeStore) Execute(_ context.Context, q *seqpb.ExecuteRequest) (*seqpb.ExecuteReply, error) {
	return &seqpb.ExecuteReply{Outcome: q.Batch}, nil
}

func (f *fakeStore) Read(context.Context, *seqpb.ReadRequest) (*seqpb.ReadReply, error) {
	return &seqpb.ReadReply{}, nil
}

func (f *fakeStore) ReadGaps(context.Context, *seqpb.ReadGapsRequest) (*seqpb.ReadGapsReply, error) {
	return &seqpb.ReadGapsReply{}, nil
}

// fakePeer says how much it was given.
type fakePeer struct{}

func (*fakePeer) TakeWindow(_ context.Context, q *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	return &seqpb.TakeWindowReply{Refusal: &seqpb.Refusal{Message: strconv.Itoa(len(q.Parts[0].Window))}}, nil
}

// fakeSets echoes commands; fakeSetAdmin moves what it is asked to.
type (
	fakeSets     struct{ seqpb.Sets }
	fakeSetAdmin struct{ seqpb.SetAdmin }
)

func (fakeSets) Command(_ context.Context, q *seqpb.SetCommandRequest) (*seqpb.SetCommandReply, error) {
	return &seqpb.SetCommandReply{Outcome: q.Command}, nil
}

func (fakeSetAdmin) SetMove(_ context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	return &seqpb.SetMoveReply{Move: &seqpb.MoveStatus{From: q.From, To: q.To}}, nil
}

type fixture struct {
	*Server
	seq   *fakeSeq
	store *fakeStore
	addr  string
}

func start(t *testing.T, o Options) *fixture {
	t.Helper()
	f := &fixture{seq: newFakeSeq(), store: &fakeStore{done: make(chan error, 10)}}
	s, err := Listen("127.0.0.1:0", Services{Seq: f.seq, Store: f.store, Peer: &fakePeer{}, Sets: &fakeSets{}, SetAdmin: &fakeSetAdmin{}}, o)
	if err != nil {
		t.Fatal(err)
	}
	f.Server, f.addr = s, s.Addr().String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
	})
	return f
}

func dialSeq(t *testing.T, addr string) *SeqConn {
	t.Helper()
	c, err := DialSeq(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// overEach runs a test over both ways that hot calls can go.
func overEach(t *testing.T, test func(t *testing.T, dial func(*testing.T, string) *SeqConn)) {
	t.Run("lean frames", func(t *testing.T) { test(t, dialSeq) })
	t.Run("gRPC", func(t *testing.T) {
		test(t, func(t *testing.T, addr string) *SeqConn {
			t.Helper()
			c, err := DialSeqGRPC(addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		})
	})
}

func timeout(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestSetsAreCalledAndAdministered(t *testing.T) {
	f := start(t, Options{})
	c, err := DialSets(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	large := make([]byte, 1_000_000)
	rep, err := c.Command(timeout(t, 5*time.Second), &seqpb.SetCommandRequest{Command: large})
	if err != nil || len(rep.Outcome) != len(large) {
		t.Fatalf("%d bytes, %v", len(rep.GetOutcome()), err)
	}
	a, err := DialSetAdmin(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m, err := a.SetMove(timeout(t, 5*time.Second), &seqpb.SetMoveRequest{From: "s1", To: "s2"})
	if err != nil || m.Move.GetFrom() != "s1" || m.Move.GetTo() != "s2" {
		t.Fatalf("%v, %v", m, err)
	}
}

func TestAPeerIsGivenAWindow(t *testing.T) {
	f := start(t, Options{})
	c, err := DialPeer(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	rep, err := c.TakeWindow(timeout(t, 5*time.Second), &seqpb.TakeWindowRequest{Parts: []*seqpb.WindowPart{{Window: make([]byte, 1_000_000)}}})
	if err != nil || rep.Refusal.GetMessage() != "1000000" {
		t.Fatalf("%v %v", rep, err)
	}
}

func TestServicesShareOnePort(t *testing.T) {
	f := start(t, Options{})
	ctx := timeout(t, 5*time.Second)
	r, err := dialSeq(t, f.addr).Alloc(ctx, &seqpb.AllocRequest{Uids: []uint64{1, 2}})
	if err != nil || len(r.First) != 2 {
		t.Fatalf("alloc: %v %v", r, err)
	}
	st, err := DialStore(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	x, err := st.Execute(ctx, &seqpb.ExecuteRequest{Batch: []byte("abc")})
	if err != nil || string(x.Outcome) != "abc" {
		t.Fatalf("execute: %v %v", x, err)
	}
}

func TestTTHeaderIsServedOnTheSamePort(t *testing.T) {
	f := start(t, Options{})
	c, err := seq.NewClient("seqsvr", kitex.WithHostPorts(f.addr), kitex.WithTransportProtocol(kitextransport.TTHeaderFramed))
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i < 20; i++ {
		r, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: []uint64{i}})
		if err != nil || len(r.First) != 1 || r.First[0] != i {
			t.Fatalf("%v %v", r, err)
		}
	}
	if _, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Space: "busy"}); err == nil || !strings.Contains(err.Error(), "BUSY: the queue is full") {
		t.Errorf("%v", err)
	}
	begin := time.Now()
	if err := f.Stop(timeout(t, 5*time.Second)); err != nil || time.Since(begin) > time.Second {
		t.Errorf("stop with an idle TTHeader connection: %v after %v", err, time.Since(begin))
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	overEach(t, testErrorsKeepTheirCode)
}

func testErrorsKeepTheirCode(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	c := dial(t, f.addr)
	for space, want := range map[string]struct {
		code     seqpb.Code
		answered bool
		text     string
	}{
		"refused":   {seqpb.Code_CODE_INVALID_ARGUMENT, true, "count 0: want 1 or more"},
		"busy":      {seqpb.Code_CODE_BUSY, true, "the queue is full: try later"},
		"not-ready": {seqpb.Code_CODE_NOT_READY, true, "no lease yet"},
		"plain":     {seqpb.Code_CODE_UNKNOWN_RESULT, false, "something else"},
		"panic":     {seqpb.Code_CODE_UNKNOWN_RESULT, false, "the handler panicked; the server's log has the stack"},
	} {
		_, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Space: space})
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", space, err)
		}
		if e.Code != want.code || e.Answered != want.answered || e.Text != want.text || e.NotSent {
			t.Errorf("%s: got %+v", space, e)
		}
	}
}

func TestEveryCodeHasADistinctDecodableStatus(t *testing.T) {
	for v, name := range seqpb.Code_name {
		c := seqpb.Code(v)
		if c == seqpb.Code_CODE_OK {
			continue
		}
		got, text, ok := decodeStatus(encodeStatus(Errorf(c, "why: because")))
		if !ok || got != c || text != "why: because" {
			t.Errorf("%s: got %v %q %v", name, got, text, ok)
		}
	}
}

func TestDeadlineReachesTheHandler(t *testing.T) {
	overEach(t, testDeadlineReachesTheHandler)
}

func testDeadlineReachesTheHandler(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	r, err := dial(t, f.addr).Alloc(timeout(t, 3*time.Second), &seqpb.AllocRequest{Space: "deadline"})
	if err != nil || r.MapVersion < 2000 || r.MapVersion > 3000 {
		t.Fatalf("%v %v", r, err)
	}
}

func TestAnExpiredCallIsOfUnknownOutcome(t *testing.T) {
	overEach(t, testAnExpiredCallIsOfUnknownOutcome)
}

func testAnExpiredCallIsOfUnknownOutcome(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	_, err := dial(t, f.addr).Alloc(timeout(t, 50*time.Millisecond), &seqpb.AllocRequest{Space: "wait"})
	var e *Error
	if !errors.As(err, &e) || e.NotSent || e.Answered || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%#v", err)
	}
}

func TestARefusedDialIsNotSent(t *testing.T) {
	overEach(t, testARefusedDialIsNotSent)
}

func testARefusedDialIsNotSent(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	if err := f.Stop(timeout(t, time.Second)); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t, f.addr).Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{})
	if !NotSent(err) {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("unclear: %v", err)
	}
}

func TestStopAnswersCallsInFlight(t *testing.T) {
	overEach(t, testStopAnswersCallsInFlight)
}

func testStopAnswersCallsInFlight(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	const calls = 50
	errs := make(chan error, calls)
	c := dial(t, f.addr)
	for range calls {
		go func() {
			_, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Space: "wait"})
			errs <- err
		}()
	}
	for range calls {
		<-f.seq.entered
	}
	stopped := make(chan error, 1)
	go func() { stopped <- f.Stop(timeout(t, 5*time.Second)) }()
	select {
	case err := <-stopped:
		t.Fatalf("stopped before the calls were answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(f.seq.release)
	for range calls {
		if err := <-errs; err != nil {
			t.Errorf("a call in flight failed: %v", err)
		}
	}
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
}

// A client that goes on calling while the server stops must know of each call
// whether it was executed.
func TestStopUnderLoadLeavesNoCallUnknown(t *testing.T) {
	overEach(t, testStopUnderLoadLeavesNoCallUnknown)
}

func testStopUnderLoadLeavesNoCallUnknown(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	const callers = 16
	var ok, notSent, unknown atomic.Int64
	done := make(chan struct{})
	c := dial(t, f.addr)
	for range callers {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				_, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Uids: []uint64{1}})
				switch {
				case err == nil:
					ok.Add(1)
				case NotSent(err):
					notSent.Add(1)
					return
				default:
					unknown.Add(1)
					t.Log(err)
					return
				}
			}
		}()
	}
	for ok.Load() < callers {
		time.Sleep(time.Millisecond)
	}
	if err := f.Stop(timeout(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	for range callers {
		<-done
	}
	if unknown.Load() != 0 {
		t.Fatalf("ok %d, not sent %d, unknown %d", ok.Load(), notSent.Load(), unknown.Load())
	}
	if ok.Load() != f.seq.executed.Load() {
		t.Fatalf("%d answered, %d executed", ok.Load(), f.seq.executed.Load())
	}
}

func TestStopEndsStreamsAtOnce(t *testing.T) {
	f := start(t, Options{})
	w, err := dialSeq(t, f.addr).WatchRoutes(context.Background(), &seqpb.RoutesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := f.Stop(timeout(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > time.Second {
		t.Errorf("stop took %v", d)
	}
	if cause := <-f.seq.watchDone; cause != ErrStopping {
		t.Errorf("stream ended by %v", cause)
	}
	_, err = w.Recv()
	var e *Error
	if !errors.As(err, &e) || !e.Answered || e.Code != seqpb.Code_CODE_UNAVAILABLE {
		t.Errorf("watcher was told %#v", err)
	}
}

func TestStopGivesUpOnAStuckHandlerWhenItsContextEnds(t *testing.T) {
	overEach(t, testStopGivesUpOnAStuckHandlerWhenItsContextEnds)
}

func testStopGivesUpOnAStuckHandlerWhenItsContextEnds(t *testing.T, dial func(*testing.T, string) *SeqConn) {
	f := start(t, Options{})
	c := dial(t, f.addr)
	errs := make(chan error, 1)
	go func() {
		_, err := c.Alloc(timeout(t, 5*time.Second), &seqpb.AllocRequest{Space: "wait"})
		errs <- err
	}()
	<-f.seq.entered
	begin := time.Now()
	err := f.Stop(timeout(t, 200*time.Millisecond))
	if err == nil || time.Since(begin) > 2*time.Second {
		t.Fatalf("%v after %v", err, time.Since(begin))
	}
	if err := <-errs; err == nil || NotSent(err) {
		t.Errorf("caller was told %v", err)
	}
}

func TestAStreamKeepsLittleForAConsumerThatDoesNotTake(t *testing.T) {
	f := start(t, Options{})
	w, err := dialSeq(t, f.addr).WatchKeys(context.Background(), &seqpb.WatchKeysRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Recv(); err != nil {
		t.Fatal(err)
	}
	pushed := f.seq.pushed.Load()
	for still := 0; still < 5; { // until the sender stands still
		time.Sleep(50 * time.Millisecond)
		if now := f.seq.pushed.Load(); now != pushed {
			still, pushed = 0, now
		} else {
			still++
		}
		if pushed > 1<<20 {
			t.Fatalf("%d messages were taken off the sender, and nobody has read them", pushed)
		}
	}
	for v := uint64(2); v <= pushed+1000; v++ { // and goes on, with nothing lost
		m, err := w.Recv()
		if err != nil || m.Current[0] != v {
			t.Fatalf("message %d: %+v, %v", v, m, err)
		}
	}
}

func TestAStreamEndsWhenItsClientGoes(t *testing.T) {
	t.Run("by closing the watch", func(t *testing.T) {
		f := start(t, Options{})
		w, err := dialSeq(t, f.addr).WatchRoutes(context.Background(), &seqpb.RoutesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
		go w.Recv()
		w.Close()
		select {
		case <-f.seq.watchDone:
		case <-time.After(3 * time.Second):
			t.Fatal("the handler did not notice")
		}
	})
	t.Run("by closing the connection", func(t *testing.T) {
		f := start(t, Options{})
		c := dialSeq(t, f.addr)
		w, err := c.WatchRoutes(context.Background(), &seqpb.RoutesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Recv(); err != nil {
			t.Fatal(err)
		}
		c.Close()
		select {
		case <-f.seq.watchDone:
		case <-time.After(3 * time.Second):
			t.Fatal("the handler did not notice")
		}
	})
}

func TestSessionStream(t *testing.T) {
	f := start(t, Options{})
	c, err := DialStore(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 100; i++ {
		if err := s.Send(&seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: i}}); err != nil {
			t.Fatal(err)
		}
		d, err := s.Recv()
		if err != nil || d.Ack.Number != i {
			t.Fatalf("%v %v", d, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := <-f.store.done; err != io.EOF {
		t.Errorf("the server saw %v, want EOF", err)
	}
	if _, err := s.Recv(); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestASessionEndsOnBothSidesWhenCancelled(t *testing.T) {
	f := start(t, Options{})
	c, err := DialStore(f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&seqpb.SessionUp{Heartbeat: &seqpb.Heartbeat{Number: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := s.Recv(); got <- err }()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("client: %v", err)
	}
	select {
	case <-f.store.done:
	case <-time.After(3 * time.Second):
		t.Fatal("the handler did not notice")
	}
}

func TestTheClientReconnects(t *testing.T) {
	f := start(t, Options{})
	c := dialSeq(t, f.addr)
	if _, err := c.GetRoutes(timeout(t, time.Second), &seqpb.RoutesRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := f.Stop(timeout(t, time.Second)); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f.addr, Services{Seq: newFakeSeq()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop(timeout(t, time.Second))
	if _, err := c.GetRoutes(timeout(t, time.Second), &seqpb.RoutesRequest{}); err != nil {
		t.Fatal(err)
	}
}

func TestGeneratedMessagesDoNotAliasTheBuffer(t *testing.T) {
	b, err := (&seqpb.AllocRequest{
		Space: "conv", Names: []string{"si_1001_1002"}, RequestIds: [][]byte{[]byte("0123456789abcdef")},
	}).Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	var q seqpb.AllocRequest
	if err := q.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		b[i] = 0xff
	}
	if q.Space != "conv" || q.Names[0] != "si_1001_1002" || string(q.RequestIds[0]) != "0123456789abcdef" {
		t.Fatalf("the message changed with the buffer: %v", &q)
	}
}
