package handover

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// records have digests that are spread as those of a hash are.
func records(n int) []dedupe.Entry {
	out := make([]dedupe.Entry, n)
	for i := range out {
		out[i] = dedupe.Entry{Digest: dedupe.Digest{A: (uint64(i) + 1) * 0x9E3779B97F4A7C15, B: 7}, First: ids.Seq(i + 1), Count: 1, At: 1_000}
	}
	return out
}

// request has a window of n records for section 3 at epoch 5, in parts.
func request(n int, taken uint64) *seqpb.TakeWindowRequest {
	q := &seqpb.TakeWindowRequest{ClusterId: "c", FromSession: 1, ToSession: 2}
	parts := split(dedupe.Export{Since: 900, Entries: records(n)})
	for i, b := range parts {
		q.Parts = append(q.Parts, &seqpb.WindowPart{
			Section: 3, Epoch: 5, Part: uint32(i), Parts: uint32(len(parts)), TakenMs: taken, Window: b,
		})
	}
	return seal(q)
}

func seal(q *seqpb.TakeWindowRequest) *seqpb.TakeWindowRequest {
	for _, p := range q.Parts {
		p.Checksum = checksum(q, p)
	}
	return q
}

// only leaves the named parts.
func only(q *seqpb.TakeWindowRequest, parts ...int) *seqpb.TakeWindowRequest {
	all := q.Parts
	q.Parts = nil
	for _, i := range parts {
		q.Parts = append(q.Parts, all[i])
	}
	return q
}

func (s *Stage) must(t *testing.T, q *seqpb.TakeWindowRequest, want seqpb.RefusalCode) {
	t.Helper()
	if got := s.Take(q).GetRefusal().GetCode(); got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestAWindowIsWholeOrNothing(t *testing.T) {
	const three = 2*partEntries + 1
	for name, c := range map[string]struct {
		send []*seqpb.TakeWindowRequest
		at   ids.Epoch
		ok   bool
	}{
		"all at once":              {[]*seqpb.TakeWindowRequest{request(three, 1)}, 5, true},
		"one by one, in any order": {[]*seqpb.TakeWindowRequest{only(request(three, 1), 2), only(request(three, 1), 0), only(request(three, 1), 1)}, 5, true},
		"with copies":              {[]*seqpb.TakeWindowRequest{only(request(three, 1), 2, 2), only(request(three, 1), 0, 1, 0)}, 5, true},
		"the first is missing":     {[]*seqpb.TakeWindowRequest{only(request(three, 1), 1, 2)}, 5, false},
		"the last is missing":      {[]*seqpb.TakeWindowRequest{only(request(three, 1), 0, 1)}, 5, false},
		"of two takings":           {[]*seqpb.TakeWindowRequest{only(request(three, 1), 0, 1), only(request(three, 2), 2)}, 5, false},
		"taken again":              {[]*seqpb.TakeWindowRequest{only(request(three, 1), 0, 1), request(three, 2), only(request(three, 1), 2)}, 5, true},
		"at another epoch":         {[]*seqpb.TakeWindowRequest{request(three, 1)}, 6, false},
		"at an epoch before":       {[]*seqpb.TakeWindowRequest{request(three, 1)}, 4, false},
		"never":                    {nil, 5, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStage("c", 2, 8)
			for _, q := range c.send {
				s.must(t, q, seqpb.RefusalCode_REFUSAL_NONE)
			}
			e, ok := s.Open(3, c.at)
			if ok != c.ok || ok && (e.Since != 900 || !reflect.DeepEqual(e.Entries, records(three))) {
				t.Fatalf("%d records since %d, %v", len(e.Entries), e.Since, ok)
			}
			if c.at >= 5 && s.Bytes() != 0 {
				t.Errorf("%d bytes are kept", s.Bytes())
			}
			if _, ok := s.Open(3, c.at); ok {
				t.Error("used twice")
			}
		})
	}
}

func TestAWindowForALaterEpochOutlivesAnOpeningBefore(t *testing.T) {
	s := NewStage("c", 2, 8)
	s.must(t, request(3, 1), seqpb.RefusalCode_REFUSAL_NONE)
	if _, ok := s.Open(3, 4); ok {
		t.Fatal("used at epoch 4")
	}
	if _, ok := s.Open(3, 5); !ok {
		t.Fatal("not used at epoch 5")
	}
}

func TestWhatIsKeptIsBoundedAndExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStage("c", 2, 8)
		s.limit = 3 * entryBytes * partEntries
		s.must(t, request(2*partEntries, 1), seqpb.RefusalCode_REFUSAL_NONE)
		full := request(2*partEntries, 1)
		for _, p := range full.Parts {
			p.Section = 4
		}
		s.must(t, seal(full), seqpb.RefusalCode_REFUSAL_BUSY)
		if s.Bytes() > s.limit {
			t.Errorf("%d bytes", s.Bytes())
		}
		time.Sleep(keepFor + time.Second)
		s.must(t, full, seqpb.RefusalCode_REFUSAL_NONE)
		if _, ok := s.Open(3, 5); ok {
			t.Error("used after it expired")
		}
		time.Sleep(keepFor + time.Second)
		if s.Sweep(); s.Bytes() != 0 || len(s.kept) != 0 {
			t.Errorf("%d bytes are left", s.Bytes())
		}
	})
}

func TestAStageRefusesWhatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(q *seqpb.TakeWindowRequest)
		want   seqpb.RefusalCode
	}{
		"another cluster": {func(q *seqpb.TakeWindowRequest) { q.ClusterId = "d" }, seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER},
		"another session": {func(q *seqpb.TakeWindowRequest) { q.ToSession = 3 }, seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED},
		"from nobody":     {func(q *seqpb.TakeWindowRequest) { q.FromSession = 0 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"from itself":     {func(q *seqpb.TakeWindowRequest) { q.FromSession = 2 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"unknown section": {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Section = 8 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"no epoch":        {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Epoch = 0 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"a part beyond":   {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Part = 1 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"too many parts":  {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Parts = partsMax + 1 }, seqpb.RefusalCode_REFUSAL_INVALID},
		"nothing":         {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Window = nil }, seqpb.RefusalCode_REFUSAL_INVALID},
		"no since":        {func(q *seqpb.TakeWindowRequest) { q.Parts[0].Window = dedupe.Export{}.Append(nil) }, seqpb.RefusalCode_REFUSAL_INVALID},
		"a good and a bad one": {func(q *seqpb.TakeWindowRequest) {
			q.Parts = append(q.Parts, &seqpb.WindowPart{Section: 1, Epoch: 1, Parts: 1, TakenMs: 1})
		}, seqpb.RefusalCode_REFUSAL_INVALID},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStage("c", 2, 8)
			q := request(3, 1)
			c.change(q)
			s.must(t, seal(q), c.want)
			if s.Bytes() != 0 {
				t.Error("something was kept")
			}
		})
	}
	s := NewStage("c", 2, 8)
	for _, change := range []func(q *seqpb.TakeWindowRequest){
		func(q *seqpb.TakeWindowRequest) { q.FromSession = 7 },
		func(q *seqpb.TakeWindowRequest) { q.Parts[0].Section = 2 },
		func(q *seqpb.TakeWindowRequest) { q.Parts[0].Epoch = 6 },
		func(q *seqpb.TakeWindowRequest) { q.Parts[0].TakenMs++ },
		func(q *seqpb.TakeWindowRequest) { q.Parts[0].Window[3] ^= 4 },
	} {
		q := request(3, 1)
		change(q) // and the checksum as it was
		s.must(t, q, seqpb.RefusalCode_REFUSAL_INVALID)
	}
}

func FuzzTakeWindow(f *testing.F) {
	b, _ := request(3, 1).Marshal(nil)
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := &seqpb.TakeWindowRequest{}
		if q.Unmarshal(b) != nil {
			return
		}
		s := NewStage("c", 2, 8)
		s.Take(q)
		q.ClusterId, q.FromSession, q.ToSession = "c", 1, 2
		q.Parts = slices.DeleteFunc(q.Parts, func(p *seqpb.WindowPart) bool { return p == nil })
		s.Take(seal(q)) // and behind the checksum
		for no := range ids.Section(8) {
			s.Open(no, ids.Epoch(1<<62))
		}
		if s.Bytes() != 0 {
			t.Fatalf("%d bytes are left", s.Bytes())
		}
	})
}

// network has one next owner, and says what becomes of each call.
type network struct {
	stage *Stage
	fate  func(call int) error
	slow  time.Duration

	mu     sync.Mutex
	calls  int
	most   int
	opened int
}

func (n *network) dial(string) (PeerConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened++
	return n, nil
}
func (n *network) Close() error { n.mu.Lock(); defer n.mu.Unlock(); n.opened--; return nil }

func (n *network) open() int { n.mu.Lock(); defer n.mu.Unlock(); return n.opened }

func (n *network) TakeWindow(ctx context.Context, q *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	n.mu.Lock()
	n.calls++
	call := n.calls
	b, _ := q.Marshal(nil)
	n.most = max(n.most, len(b))
	n.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(n.slow):
	}
	if n.fate != nil {
		if err := n.fate(call); err != nil {
			return nil, err
		}
	}
	return n.stage.Take(q), nil
}

type release int

func (release) Fill(*state.Op) bool        { return false }
func (release) Done(state.OpResult, error) {}

// carry sends sections 0 to 3 with so many records each, and tells what became of it and how long it took.
func carry(t *testing.T, n *network, each int) (released []raise.Item, arrived, failed int, took time.Duration) {
	t.Helper()
	a, err := arena.Open(arena.Options{Cluster: "c", Node: "a1", BootID: "b", Region: arena.NewHeap("a1", 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(false)
	table := dedupe.New(dedupe.Options{Arena: a})
	if err := a.Reset(arena.Identity{ClusterID: "c", Session: 1, Incarnation: 1}, 8, ids.DefaultSpaces()); err != nil {
		t.Fatal(err)
	}
	n.stage = NewStage("c", 2, 8)
	now := uint64(time.Now().UnixMilli())
	var items []Item
	for no := range ids.Section(4) {
		if err := a.OpenSection(no, 4); err != nil {
			t.Fatal(err)
		}
		e := dedupe.Export{Since: now - 5, Entries: records(each)}
		for i := range e.Entries {
			e.Entries[i].At = now - 2
		}
		if err := table.Import(no, e, now); err != nil || !table.Used(no) {
			t.Fatal(err)
		}
		a.CloseSection(no)
		items = append(items, Item{Section: no, Target: Target{Epoch: 5, To: 2, Addr: "b1:1"}, Then: []raise.Item{release(no)}})
	}
	if table.Used(5) {
		t.Error("section 5 has a window")
	}
	done := make(chan struct{})
	c := NewCarrier(Config{
		ClusterID: "c", Session: 1, Window: table, Dial: n.dial, Logger: zaptest.NewLogger(t),
		Submit: func(then []raise.Item) {
			released = append(released, then...)
			if len(released) == len(items) {
				close(done)
			}
		},
		Sent: func(x, y int) { arrived, failed = arrived+x, failed+y },
	})
	start := time.Now()
	c.Carry(items)
	<-done
	took = time.Since(start)
	synctest.Wait()
	if o := n.open(); n.fate == nil && n.slow == 0 && o != 1 {
		t.Errorf("%d connections are open", o)
	}
	time.Sleep(2 * connIdle)
	synctest.Wait()
	if o := n.open(); o != 0 {
		t.Errorf("%d idle connections are open", o)
	}
	c.Close()
	return released, arrived, failed, took
}

func TestLargeWindowsAreSentInBoundedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		released, arrived, failed, _ := carry(t, n, partEntries+partEntries/2)
		if len(released) != 4 || arrived != 4 || failed != 0 || n.calls < 4 || n.most > 1<<20 {
			t.Errorf("%d released, %d arrived, %d failed, in %d messages of up to %d bytes", len(released), arrived, failed, n.calls, n.most)
		}
		for no := range ids.Section(4) {
			if e, ok := n.stage.Open(no, 5); !ok || len(e.Entries) != partEntries+partEntries/2 {
				t.Errorf("section %d: %d records, %v", no, len(e.Entries), ok)
			}
		}
	})
}

func TestSmallWindowsShareAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		if _, arrived, _, _ := carry(t, n, 10); arrived != 4 || n.calls != 1 {
			t.Errorf("%d arrived, in %d messages", arrived, n.calls)
		}
	})
}

func TestAFailureLetsEverySectionGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{fate: func(call int) error {
			if call > 2 {
				return errors.New("reset")
			}
			return nil
		}}
		released, arrived, failed, _ := carry(t, n, partEntries+partEntries/2)
		whole := 0
		for no := range ids.Section(4) {
			if _, ok := n.stage.Open(no, 5); ok {
				whole++
			}
		}
		if len(released) != 4 || arrived != whole || failed != 4-whole || whole == 0 || whole == 4 {
			t.Errorf("%d released, %d arrived, %d failed, %d came whole, in %d messages", len(released), arrived, failed, whole, n.calls)
		}
	})
}

func TestANextOwnerThatIsNotReadyYetIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{fate: func(call int) error {
			if call < 4 {
				return &refusedError{&seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY}}
			}
			return nil
		}}
		if _, arrived, failed, took := carry(t, n, 10); arrived != 4 || failed != 0 || took != 7*pauseMin {
			t.Errorf("%d arrived, %d failed, after %v", arrived, failed, took)
		}
	})
}

func TestAFinalRefusalIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{fate: func(int) error { return &refusedError{&seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_BUSY}} }}
		if released, _, failed, took := carry(t, n, 10); len(released) != 4 || failed != 4 || took != 0 || n.calls != 1 {
			t.Errorf("%d released, %d failed, after %v and %d calls", len(released), failed, took, n.calls)
		}
	})
}

// A next owner that is slow, as one that stands still for a second, gets all windows.
func TestASlowNextOwnerGetsAllWindows(t *testing.T) {
	for name, c := range map[string]struct {
		slow time.Duration
		each int
	}{"each message": {60 * time.Millisecond, partEntries + partEntries/2}, "one": {patience - time.Millisecond, 10}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{slow: c.slow}
				if released, arrived, failed, _ := carry(t, n, c.each); len(released) != 4 || arrived != 4 || failed != 0 {
					t.Errorf("%d released, %d arrived, %d failed", len(released), arrived, failed)
				}
			})
		})
	}
}

func TestManySlowMessagesTogetherHoldNothingUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{slow: patience * 3 / 10}
		released, arrived, failed, took := carry(t, n, partEntries+partEntries/2)
		if most := patience + 5*patiencePerMB; len(released) != 4 || arrived+failed != 4 || arrived == 0 || failed == 0 || took > most {
			t.Errorf("%d released, %d arrived, %d failed, after %v", len(released), arrived, failed, took)
		}
	})
}

func TestSlownessHoldsNothingUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{slow: time.Hour}
		released, arrived, failed, took := carry(t, n, 10)
		if len(released) != 4 || arrived != 0 || failed != 4 || took > patience+time.Millisecond {
			t.Errorf("%d released, %d arrived, %d failed, after %v", len(released), arrived, failed, took)
		}
	})
}
