package check

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// oracle is a correct service of a few keys, with clients whose calls overlap,
// answers that get lost, request ids, process crashes and machine losses. It
// is written for being evidently right: each operation takes effect at one
// point between its call and its answer.
type oracle struct {
	t    *rapid.T
	now  int64
	step int64
	keys map[string]*oracleKey
	open []*oracleOp
	h    history.History
	ids  int
	// says: answers to request ids say since when all of them are remembered.
	says bool
	// finished keys have had their last allocation.
	finished map[string]bool
}

type oracleKey struct {
	cur, floor, bound int64
	// hole is not yet told to a caller; to 0 for none.
	holeFrom, holeTo int64
	window           map[history.RequestID]history.Op
	since            int64 // is all in the window
}

type oracleOp struct {
	op      int // index into h.Ops
	applied bool
	answer  history.Op
}

type oracleParams struct {
	keys, ops, nMax int
	reads           bool
	unknown         bool
	requests        bool
	losses          bool
	ledger          bool
}

// tick is longer than servers are unsure of since when they remember.
func (o *oracle) tick() int64 { o.now += 10 * millisecond; return o.now }

// generate draws a history that a correct service can produce.
func generate(t *rapid.T, p oracleParams) *history.History {
	o := &oracle{t: t, step: 20, says: rapid.Bool().Draw(t, "says since"), keys: map[string]*oracleKey{}, finished: map[string]bool{}}
	o.h.Step = o.step
	for started := 0; started < p.ops || len(o.open) > 0; {
		switch what := rapid.IntRange(0, 11).Draw(t, "what"); {
		case what <= 3 && started < p.ops:
			o.call(p)
			started++
		case what <= 6:
			o.apply()
		case what <= 9:
			o.answer()
		case what == 10 && p.unknown:
			o.lose()
		case what == 11 && p.losses:
			o.machineLoss(p)
		}
	}
	if p.losses {
		o.finish()
	}
	return &o.h
}

// finish allocates once from each key when all is quiet, as the harness does,
// so that the last holes are declared and the service is seen to be back.
func (o *oracle) finish() {
	for i := range o.h.Ops {
		key := o.h.Ops[i].Key
		if o.finished[key] {
			continue
		}
		o.finished[key] = true
		x := &oracleOp{op: len(o.h.Ops)}
		o.h.Ops = append(o.h.Ops, history.Op{Key: key, Kind: history.Alloc, N: 1, Call: o.tick()})
		o.open = append(o.open, x)
		o.apply()
		o.answer()
	}
}

func (o *oracle) call(p oracleParams) {
	op := history.Op{
		Client: rapid.IntRange(0, 3).Draw(o.t, "client"),
		Key:    fmt.Sprintf("uid/%d", rapid.IntRange(0, p.keys-1).Draw(o.t, "key")),
		Kind:   history.Alloc, Call: o.tick(),
	}
	if p.reads && rapid.IntRange(0, 3).Draw(o.t, "read") == 0 {
		op.Kind = history.Current
	} else {
		op.N = uint32(rapid.IntRange(1, p.nMax).Draw(o.t, "n"))
		if p.requests && rapid.Bool().Draw(o.t, "with id") {
			o.request(&op)
		}
	}
	o.open = append(o.open, &oracleOp{op: len(o.h.Ops)})
	o.h.Ops = append(o.h.Ops, op)
}

// request gives the operation a new id, or makes it a retry of an earlier one.
func (o *oracle) request(op *history.Op) {
	if o.ids > 0 && rapid.Bool().Draw(o.t, "retry") {
		for _, q := range o.h.Ops {
			if !q.Request.IsZero() && q.Key == op.Key && rapid.IntRange(0, 2).Draw(o.t, "this one") == 0 {
				op.Request, op.N = q.Request, q.N
				return
			}
		}
	}
	o.ids++
	op.Request = history.RequestID{0: byte(o.ids >> 8), 1: byte(o.ids), 15: 1}
}

func (o *oracle) pick(applied bool) *oracleOp {
	var c []*oracleOp
	for _, x := range o.open {
		if x.applied == applied {
			c = append(c, x)
		}
	}
	if len(c) == 0 {
		return nil
	}
	return c[rapid.IntRange(0, len(c)-1).Draw(o.t, "which")]
}

func (o *oracle) close(x *oracleOp) {
	for i, y := range o.open {
		if x == y {
			o.open = append(o.open[:i], o.open[i+1:]...)
			return
		}
	}
}

func (o *oracle) key(name string) *oracleKey {
	k := o.keys[name]
	if k == nil {
		k = &oracleKey{window: map[history.RequestID]history.Op{}, since: 1}
		o.keys[name] = k
	}
	return k
}

func (o *oracle) apply() {
	x := o.pick(false)
	if x == nil {
		return
	}
	x.applied = true
	op := o.h.Ops[x.op]
	k := o.key(op.Key)
	if op.Kind == history.Current {
		x.answer = history.Op{Outcome: history.OK, Value: max(k.cur, k.holeTo)}
		return
	}
	since := int64(0)
	if o.says && !op.Request.IsZero() {
		since = k.since
	}
	if a, ok := k.window[op.Request]; ok && !op.Request.IsZero() {
		a.Replayed, a.WindowSince = true, since
		x.answer = a
		return
	}
	a := history.Op{Outcome: history.OK, Count: op.N, WindowSince: since}
	if k.holeTo > 0 {
		a.HoleFrom, a.HoleTo = k.holeFrom, k.holeTo
		k.cur, k.holeTo = k.holeTo, 0
		k.floor, k.bound = k.cur, k.cur
	}
	if k.cur+int64(op.N) > k.bound {
		k.floor = k.cur
		k.bound = k.cur + max(o.step, int64(op.N))
	}
	a.First = k.cur + 1
	k.cur += int64(op.N)
	if !op.Request.IsZero() {
		k.window[op.Request] = a
	}
	x.answer = a
}

func (o *oracle) answer() {
	if x := o.pick(true); x != nil {
		op := &o.h.Ops[x.op]
		op.Return = o.tick()
		op.Outcome, op.First, op.Count, op.Value = x.answer.Outcome, x.answer.First, x.answer.Count, x.answer.Value
		op.HoleFrom, op.HoleTo, op.Replayed, op.WindowSince = x.answer.HoleFrom, x.answer.HoleTo, x.answer.Replayed, x.answer.WindowSince
		o.close(x)
		return
	}
	if x := o.pick(false); x != nil && rapid.IntRange(0, 5).Draw(o.t, "fails") == 0 {
		op := &o.h.Ops[x.op]
		op.Return, op.Outcome, op.Err = o.tick(), history.Failed, "busy"
		if op.Kind == history.Alloc {
			o.raiseFor(op)
		}
		o.close(x)
	}
}

// raiseFor raises a bound for an operation that waits for it, and then may take
// nothing: by what it asked for, and by up to a step more.
func (o *oracle) raiseFor(op *history.Op) {
	k := o.key(op.Key)
	if k.holeTo > 0 || k.cur+int64(op.N) <= k.bound || !rapid.Bool().Draw(o.t, "raised") {
		return
	}
	k.floor = k.cur
	k.bound = k.cur + max(o.step, int64(op.N)+rapid.Int64Range(0, o.step).Draw(o.t, "beyond"))
}

// lose makes a client give up on an operation, applied or not; one that is not
// may be applied later.
func (o *oracle) lose() {
	applied := rapid.Bool().Draw(o.t, "applied")
	x := o.pick(applied)
	if x == nil {
		return
	}
	op := &o.h.Ops[x.op]
	op.Return, op.Err = o.tick(), "unknown_result"
	if !applied && op.Kind == history.Alloc && rapid.Bool().Draw(o.t, "later") {
		o.apply() // of this or of another
	}
	o.close(x)
}

// machineLoss forgets cur of all keys.
func (o *oracle) machineLoss(p oracleParams) {
	o.h.Faults = append(o.h.Faults, history.Fault{Name: "machine-loss", Start: o.tick(), End: o.tick(), Losses: 1})
	for _, x := range o.open {
		if op := &o.h.Ops[x.op]; !x.applied && op.Kind == history.Alloc {
			o.raiseFor(op)
		}
	}
	for name, k := range o.keys {
		clear(k.window)
		k.since = o.now
		if k.holeTo > 0 || k.floor == k.bound {
			continue
		}
		k.holeFrom, k.holeTo = k.floor+1, k.bound
		if p.ledger {
			o.h.Ledger = append(o.h.Ledger, history.Gap{Key: name, From: k.holeFrom, To: k.holeTo, Cause: "machine loss"})
		}
	}
	// What was being answered has its answer; what was not yet applied goes elsewhere.
}
