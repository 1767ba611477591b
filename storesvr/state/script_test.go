package state

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// script interprets the plays in testdata/*.txt. Keys are uids; with 4 sections
// uids 0..255 are in section 0, 256..511 in section 1 and so on. Invariants are
// checked after every command.
type script struct {
	s     *State
	index uint64
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		sc := &script{s: New(NewMapKeys())}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := sc.run(t, d)
			if err := Check(sc.s); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

func (sc *script) apply(c Command) Reply {
	sc.index++
	// Through the encoding, as in the log.
	c, err := DecodeCommand(EncodeCommand(nil, c))
	if err != nil {
		panic(err)
	}
	return sc.s.Apply(sc.index, c)
}

func arg[T ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int](t *testing.T, d *datadriven.TestData, name string) T {
	v, err := strconv.ParseUint(textArg(d, name, "0"), 10, 64)
	if err != nil {
		d.Fatalf(t, "%s: %v", name, err)
	}
	return T(v)
}

func textArg(d *datadriven.TestData, name, otherwise string) string {
	if a, ok := d.Arg(name); ok && len(a.Vals) == 1 {
		return a.Vals[0]
	}
	return otherwise
}

func (sc *script) run(t *testing.T, d *datadriven.TestData) string {
	session, inc := arg[ids.SessionID](t, d, "session"), arg[ids.Incarnation](t, d, "inc")
	node := textArg(d, "node", "")
	switch d.Cmd {
	case "found":
		return said(sc.apply(Genesis{
			Cluster: "c", ClusterID: "id", Set: "s1",
			Sections: arg[uint32](t, d, "sections"), Spaces: ids.DefaultSpaces(),
		}.OwningAll()))
	case "register":
		return said(sc.apply(Register{Node: node, Addr: node + ":1"}))
	case "resume":
		return said(sc.apply(Resume{Session: session, From: inc, Addr: "back:1"}))
	case "expire":
		return said(sc.apply(Expire{Session: session, Incarnation: inc}))
	case "leave":
		return said(sc.apply(Leave{Session: session, Incarnation: inc, Done: d.HasArg("done")}))
	case "drain", "undrain":
		return said(sc.apply(SetDraining{Node: node, Draining: d.Cmd == "drain"}))
	case "put-store":
		return said(sc.apply(PutStore{Node: StoreNode{ID: node, RPCAddr: textArg(d, "addr", "")}}))
	case "drop-store":
		return said(sc.apply(DropStore{ID: node}))
	case "assign":
		return said(sc.apply(Assign{Assignments: assignments(t, d)}))
	case "settle":
		return said(sc.apply(Settle{
			Section: arg[ids.Section](t, d, "section"), Epoch: arg[ids.Epoch](t, d, "epoch"),
			Keys: keysArg(t, d), Done: d.HasArg("done"),
		}))
	case "advance":
		return said(sc.apply(Advance{Key: uid(arg[uint64](t, d, "key")), To: arg[ids.Seq](t, d, "to")}))
	case "batch":
		return said(sc.apply(Batch{
			Session: session, Incarnation: inc, Seq: arg[ids.BatchSeq](t, d, "seq"), Ops: ops(t, d),
		}))
	case "key":
		return sc.key(uid(arg[uint64](t, d, "key")))
	case "section":
		return sc.section(arg[ids.Section](t, d, "section"))
	case "route-version":
		return fmt.Sprintf("%d of %d", sc.s.Meta.RouteVersion, sc.index)
	}
	d.Fatalf(t, "unknown command %q", d.Cmd)
	return ""
}

func uid(n uint64) ids.Key { return ids.Key{Space: 1, Hi: n} }

// assignments reads lines "section to session".
func assignments(t *testing.T, d *datadriven.TestData) []Assignment {
	var as []Assignment
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		var a Assignment
		if _, err := fmt.Sscanf(line, "%d to %d", &a.Section, &a.To); err != nil {
			d.Fatalf(t, "assignment %q: %v", line, err)
		}
		as = append(as, a)
	}
	return as
}

func keysArg(t *testing.T, d *datadriven.TestData) []ids.Key {
	a, ok := d.Arg("keys")
	if !ok {
		return nil
	}
	var keys []ids.Key
	for i := range a.Vals {
		var n uint64
		a.Scan(t, i, &n)
		keys = append(keys, uid(n))
	}
	return keys
}

// ops reads lines: extend KEY epoch=E cur=C step=S; return KEY epoch=E cur=C; release SECTION epoch=E next=N.
func ops(t *testing.T, d *datadriven.TestData) []Op {
	var ops []Op
	for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
		f := strings.Fields(line)
		num := func(name string) uint64 {
			for _, w := range f[2:] {
				if v, ok := strings.CutPrefix(w, name+"="); ok {
					n, err := strconv.ParseUint(v, 10, 64)
					if err != nil {
						d.Fatalf(t, "op %q: %v", line, err)
					}
					return n
				}
			}
			return 0
		}
		n, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			d.Fatalf(t, "op %q: %v", line, err)
		}
		op := Op{Epoch: ids.Epoch(num("epoch")), Cur: ids.Seq(num("cur")), Step: ids.Seq(num("step"))}
		switch f[0] {
		case "extend":
			op.Kind, op.Key = OpExtend, uid(n)
		case "return":
			op.Kind, op.Key = OpReturn, uid(n)
		case "release":
			op.Kind, op.Section, op.Next = OpRelease, ids.Section(n), ids.SessionID(num("next"))
		default:
			d.Fatalf(t, "op %q", line)
		}
		ops = append(ops, op)
	}
	return ops
}

func said(r Reply) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.Refusal)
	if r.Session.ID != 0 {
		fmt.Fprintf(&b, "session %d incarnation %d last batch %d\n", r.Session.ID, r.Session.Incarnation, r.Session.LastBatch)
	}
	for _, o := range r.Owned {
		fmt.Fprintf(&b, "owns section %d at epoch %d\n", o.Section, o.Epoch)
	}
	for _, a := range r.Applied {
		fmt.Fprintf(&b, "assigned section %d to %d\n", a.Section, a.To)
	}
	for _, res := range r.Results {
		fmt.Fprintf(&b, "%v: floor %d bound %d", res.Refusal, res.Floor, res.Bound)
		if res.HoleTo != 0 {
			fmt.Fprintf(&b, ", hole %d..%d by %v", res.HoleFrom, res.HoleTo, res.HoleCause)
		}
		fmt.Fprintf(&b, ", section epoch %d\n", res.SectionEpoch)
	}
	return b.String()
}

func (sc *script) key(k ids.Key) string {
	rec, ok := sc.s.Keys.Get(k)
	if !ok {
		return fmt.Sprintf("never touched, value %d\n", sc.s.Value(k))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "floor %d bound %d epoch %d, value %d\n", rec.Floor, rec.Bound, rec.Epoch, sc.s.Value(k))
	for _, g := range sc.s.Keys.Gaps(k) {
		fmt.Fprintf(&b, "hole %d..%d by %v in epoch %d\n", g.From, g.To, g.Cause, g.Epoch)
	}
	return b.String()
}

func (sc *script) section(sec ids.Section) string {
	st := sc.s.Meta.Sections[sec]
	var clean []ids.Epoch
	for e := ids.Epoch(1); e <= st.Epoch; e++ {
		if sc.s.Clean(sec, e) {
			clean = append(clean, e)
		}
	}
	return fmt.Sprintf("owner %d epoch %d unclean %v clean %v\n", st.Owner, st.Epoch, st.Unclean, clean)
}
