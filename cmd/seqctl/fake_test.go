package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/internal/rpc/rpctest"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
)

func TestMain(m *testing.M) {
	os.Unsetenv(serverVariable)
	goleak.VerifyTestMain(m, rpctest.IgnoreKitex()...)
}

// fake is one AllocSvr that owns everything, and the administration of its
// cluster. The fields are set before it is called.
type fake struct {
	addr string

	mu       sync.Mutex
	counters map[string]uint64
	replays  map[string]uint64

	gaps   []*seqpb.Gap
	hole   *seqpb.Discontinuity
	fail   map[string]*seqpb.Failure // by key
	routes func() *seqpb.RouteTable
	moves  chan *router.Table    // told to the watchers
	news   chan *seqpb.KeyValues // told to those who watch keys
	full   error                 // not nil: no key can be watched
	hang   chan struct{}         // not nil: administrative calls hang until the test ends

	status    *seqpb.StatusReply
	refusals  chan *seqpb.Refusal // taken by administrative calls before they are served
	drains    chan []*seqpb.DrainProgress
	rebalance *seqpb.RebalanceReply
	asked     []string // administrative calls
	sets      *seqpb.SetListReply
	moving    []*seqpb.MoveStatus // what SetMoves answers, one after the other; the last one stays
}

func startFake(t *testing.T, change ...func(*fake)) *fake {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{
		addr: ln.Addr().String(), counters: map[string]uint64{}, replays: map[string]uint64{},
		moves: make(chan *router.Table, 10), news: make(chan *seqpb.KeyValues, 10), refusals: make(chan *seqpb.Refusal, 10), drains: make(chan []*seqpb.DrainProgress, 10),
		status: healthy(), rebalance: &seqpb.RebalanceReply{},
	}
	f.routes = func() *seqpb.RouteTable { return wire.Routes(f.table(1, 1).Whole()) }
	for _, c := range change {
		c(f)
	}
	s, err := rpc.Serve(ln, rpc.Services{Seq: f, Admin: f, SetAdmin: f}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f.hang != nil {
			close(f.hang)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// table has four sections, of which the session owner has the first; a1 (session 1)
// is this server, a2 (session 2) has its address too, so that all calls come here.
func (f *fake) table(version uint64, owner ids.SessionID) *router.Table {
	sections := make([]router.Section, 4)
	for i := range sections {
		sections[i] = router.Section{Owner: 1, Epoch: 3, Changed: 1}
	}
	sections[0] = router.Section{Owner: owner, Epoch: 3 + ids.Epoch(version-1), Changed: version}
	t, err := router.New("demo", "id-1", ids.DefaultSpaces(), sets.Single("s1", ids.DefaultSpaces()), &router.SetRoutes{
		Name: "s1", Version: version, Sections: sections,
		Nodes: []router.Node{{Session: 1, ID: "a1", Addr: f.addr}, {Session: 2, ID: "a2", Addr: f.addr}},
	})
	if err != nil {
		panic(err)
	}
	return t
}

func keysOf(uids []uint64, names []string) []string {
	keys := append([]string{}, names...)
	for _, u := range uids {
		keys = append(keys, strconv.FormatUint(u, 10))
	}
	return keys
}

func (f *fake) failure(key string, i int) *seqpb.Failure {
	e := f.fail[key]
	if e == nil {
		return nil
	}
	return &seqpb.Failure{Index: uint32(i), Code: e.Code, Message: e.Message}
}

func (f *fake) Alloc(_ context.Context, q *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rep := &seqpb.AllocReply{MapVersion: 1, SetVersion: 1}
	for i, key := range keysOf(q.Uids, q.Names) {
		n := uint64(1)
		if len(q.Counts) > 0 {
			n = uint64(q.Counts[i])
		}
		if n > 1_000_000 {
			return nil, rpc.Errorf(seqpb.Code_CODE_INVALID_ARGUMENT, "counts[%d] is %d: want 1 to 1000000", i, n)
		}
		if e := f.failure(key, i); e != nil {
			rep.Failures, rep.First = append(rep.Failures, e), append(rep.First, 0)
			continue
		}
		id := ""
		if len(q.RequestIds) > 0 && len(q.RequestIds[i]) > 0 {
			id = key + "/" + string(q.RequestIds[i])
			rep.WindowSinceMs = 1_700_000_000_000
		}
		if first, ok := f.replays[id]; ok && id != "" {
			rep.First, rep.Replayed = append(rep.First, first), append(rep.Replayed, uint32(i))
			continue
		}
		if f.hole != nil {
			f.counters[key] = f.hole.To
			rep.Discontinuities = append(rep.Discontinuities, &seqpb.Discontinuity{Index: uint32(i), From: f.hole.From, To: f.hole.To})
		}
		first := f.counters[key] + 1
		f.counters[key] += n
		f.replays[id] = first
		rep.First = append(rep.First, first)
	}
	return rep, nil
}

func (f *fake) Current(_ context.Context, q *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rep := &seqpb.CurrentReply{MapVersion: 1, SetVersion: 1}
	for i, key := range keysOf(q.Uids, q.Names) {
		if e := f.failure(key, i); e != nil {
			rep.Failures = append(rep.Failures, e)
		}
		rep.Current = append(rep.Current, f.counters[key])
	}
	return rep, nil
}

func (f *fake) Gaps(context.Context, *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	return &seqpb.GapsReply{Gaps: f.gaps}, nil
}

func (f *fake) GetRoutes(context.Context, *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	if t := f.routes(); t != nil {
		return t, nil
	}
	return nil, rpc.Errorf(seqpb.Code_CODE_NOT_READY, "this node has no routes yet")
}

func (f *fake) WatchRoutes(_ *seqpb.RoutesRequest, s seqpb.Seq_WatchRoutesServer) error {
	if err := s.Send(f.routes()); err != nil {
		return err
	}
	for {
		select {
		case t := <-f.moves:
			if err := s.Send(wire.Routes(t.Whole())); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (f *fake) WatchKeys(q *seqpb.WatchKeysRequest, s seqpb.Seq_WatchKeysServer) error {
	m := &seqpb.KeyValues{}
	if f.full != nil {
		return f.full
	}
	for i := range len(q.Uids) + len(q.Names) {
		m.Index = append(m.Index, uint32(i))
		m.Current = append(m.Current, uint64(i+1))
	}
	for {
		if err := s.Send(m); err != nil {
			return err
		}
		select {
		case m = <-f.news:
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// admin notes a call and answers how it is refused.
func (f *fake) admin(call string) *seqpb.Refusal {
	f.mu.Lock()
	f.asked = append(f.asked, call)
	f.mu.Unlock()
	if f.hang != nil {
		<-f.hang
	}
	select {
	case r := <-f.refusals:
		return r
	default:
		return nil
	}
}

func (f *fake) Status(_ context.Context, _ *seqpb.StatusRequest) (*seqpb.StatusReply, error) {
	if r := f.admin("status"); r != nil {
		return &seqpb.StatusReply{Refusal: r}, nil
	}
	return f.status, nil
}

func (f *fake) Drain(q *seqpb.DrainRequest, s seqpb.Admin_DrainServer) error {
	if r := f.admin("drain " + q.Node); r != nil {
		return s.Send(&seqpb.DrainProgress{Node: q.Node, Refusal: r})
	}
	select {
	case steps := <-f.drains:
		for _, p := range steps {
			if err := s.Send(p); err != nil {
				return err
			}
		}
		return nil
	default:
		if err := s.Send(&seqpb.DrainProgress{Node: q.Node, Moved: 3, Remaining: 5}); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
}

func (f *fake) Undrain(_ context.Context, q *seqpb.DrainRequest) (*seqpb.UndrainReply, error) {
	return &seqpb.UndrainReply{Refusal: f.admin("undrain " + q.Node)}, nil
}

func (f *fake) Rebalance(_ context.Context, q *seqpb.RebalanceRequest) (*seqpb.RebalanceReply, error) {
	if r := f.admin("rebalance " + strconv.FormatBool(q.DryRun)); r != nil {
		return &seqpb.RebalanceReply{Refusal: r}, nil
	}
	return f.rebalance, nil
}

func (f *fake) AddStore(_ context.Context, q *seqpb.AddStoreRequest) (*seqpb.StoreChangeReply, error) {
	return &seqpb.StoreChangeReply{Refusal: f.admin("add " + q.Id + " " + q.RaftAddr + " " + q.Addr), Members: []string{"n1@r1", "n2@r2"}}, nil
}

func (f *fake) RemoveStore(_ context.Context, q *seqpb.RemoveStoreRequest) (*seqpb.StoreChangeReply, error) {
	return &seqpb.StoreChangeReply{Refusal: f.admin("remove " + q.Id), Members: []string{"n1@r1"}}, nil
}

func (f *fake) SetList(context.Context, *seqpb.SetListRequest) (*seqpb.SetListReply, error) {
	if r := f.admin("sets"); r != nil {
		return &seqpb.SetListReply{Refusal: r}, nil
	}
	return f.sets, nil
}

func (f *fake) SetCreate(_ context.Context, q *seqpb.SetCreateRequest) (*seqpb.SetChangeReply, error) {
	return &seqpb.SetChangeReply{Refusal: f.admin("create " + q.Name + " " + strings.Join(q.Stores, ",")), MapVersion: 7}, nil
}

func (f *fake) SetRetire(_ context.Context, q *seqpb.SetRetireRequest) (*seqpb.SetChangeReply, error) {
	return &seqpb.SetChangeReply{Refusal: f.admin("retire " + q.Name), MapVersion: 8}, nil
}

func (f *fake) SetMove(_ context.Context, q *seqpb.SetMoveRequest) (*seqpb.SetMoveReply, error) {
	call := fmt.Sprintf("move %s %s", q.From, q.To)
	for _, r := range q.Ranges {
		call += fmt.Sprintf(" %d:%d..%d", r.Space, r.Lo, r.Last)
	}
	if q.DryRun {
		call += " dry"
	}
	return &seqpb.SetMoveReply{Refusal: f.admin(call), Move: f.move(q.DryRun)}, nil
}

// move is how the move stands; looking moves it on.
func (f *fake) move(stay bool) *seqpb.MoveStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.moving[0]
	if len(f.moving) > 1 && !stay {
		f.moving = f.moving[1:]
	}
	return m
}

func (f *fake) SetMoves(_ context.Context, q *seqpb.SetMovesRequest) (*seqpb.SetMovesReply, error) {
	if r := f.admin(fmt.Sprintf("moves %d", q.Id)); r != nil {
		return &seqpb.SetMovesReply{Refusal: r}, nil
	}
	if len(f.moving) == 0 {
		return &seqpb.SetMovesReply{}, nil
	}
	return &seqpb.SetMovesReply{Moves: []*seqpb.MoveStatus{f.move(false)}}, nil
}

func (f *fake) SetAbort(_ context.Context, q *seqpb.SetAbortRequest) (*seqpb.SetMoveReply, error) {
	call := fmt.Sprintf("abort %d", q.Id)
	if q.TargetLost {
		call += " target lost"
	}
	return &seqpb.SetMoveReply{Refusal: f.admin(call), Move: f.move(true)}, nil
}

func healthy() *seqpb.StatusReply {
	return &seqpb.StatusReply{Cluster: "demo", ClusterId: "id-1", MapVersion: 1, Sets: []*seqpb.SetStatus{{
		Name: "s1", Ranges: []string{"uid:0-4294967296"}, RouteVersion: 12, Sections: 1024,
		Stores: []*seqpb.StoreStatus{
			{Id: "n1", Addr: "10.0.0.1:7110", RaftAddr: "10.0.0.1:7120", Role: "leader", Applied: 500, Voter: true},
			{Id: "n2", Addr: "10.0.0.2:7110", RaftAddr: "10.0.0.2:7120", Role: "follower", Applied: 498, LastContactMs: 31, Voter: true},
		},
		Allocs: []*seqpb.AllocStatus{
			{Id: "a1", Addr: "10.0.0.3:7100", State: "serving", Sections: 1024, Keys: 7, Rate: 1.25, LeaseMs: 1700, Session: 4, Version: "v1", Steps: []*seqpb.SpaceSteps{
				{Space: "uid", Min: 10_000, Max: 10_000, Raises: 2, Numbers: 20_000},
				{Space: "conv", Adaptive: true, Min: 10, Max: 5000, TargetMs: 600_000},
			}},
		},
	}}}
}

// ctl runs seqctl against a server; "" is the default one.
func ctl(server string, args ...string) (code int, stdout, stderr string) {
	return ctlUntil(context.Background(), server, args...)
}

// timely runs a command with a timeout, and again where the machine stood still so
// long meanwhile that the answer tells of the clock. The command may be repeated.
func timely(server string, timeout time.Duration, args ...string) (code int, stdout, stderr string) {
	for range 5 {
		began := time.Now()
		code, stdout, stderr = ctl(server, append(args, "--timeout", timeout.String())...)
		if time.Since(began) < timeout+timeout/4 {
			break
		}
	}
	return code, stdout, stderr
}

func ctlUntil(ctx context.Context, server string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	if server != "" {
		args = append([]string{"--server", server}, args...)
	}
	code = runUntil(ctx, args, nil, &out, &errs)
	return code, out.String(), errs.String()
}

// calledFor are the administrative calls so far.
func (f *fake) calledFor() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// issued is the last number of a key.
func (f *fake) issued(key string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counters[key]
}
