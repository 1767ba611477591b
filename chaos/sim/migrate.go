package sim

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// slices cut the keys of a run into four ranges: two of uids, two of names.
func (c *Cluster) slices() []sets.Range {
	spaces := ids.DefaultSpaces()
	middle := ids.Position(uidOf(c.opt.UIDs / 2))
	var out []sets.Range
	for i, mid := range []ids.Position{middle, 1 << 63} {
		low, high := sets.Whole(spaces[i]), sets.Whole(spaces[i])
		low.Last, high.Lo = mid-1, mid
		out = append(out, low, high)
	}
	return out
}

// whereTo plans a move of a slice: what of it is owned by the Set that its first
// position is owned by goes to the other one.
func (c *Cluster) whereTo(slice sets.Range) (from, to string, ranges []sets.Range) {
	d := c.directory()
	if d == nil {
		return "", "", nil
	}
	m := &d.Directory.Map
	from, _ = m.Lookup(slice.Space, slice.Lo)
	to = map[string]string{home: away, away: home}[from]
	rest := []sets.Range{slice}
	for _, r := range m.Owned(from) {
		rest = sets.Without(rest, r)
	}
	ranges = []sets.Range{slice}
	for _, r := range rest {
		ranges = sets.Without(ranges, r)
	}
	return from, to, ranges
}

// migrate has ranges moved, as an operator would, and waits for the end of it; with
// abort it is called off by then. It gives up when stop is closed.
func (c *Cluster) migrate(from, to string, ranges []sets.Range, abort time.Duration, stop <-chan struct{}) {
	q := &seqpb.SetMoveRequest{From: from, To: to}
	for _, r := range ranges {
		q.Ranges = append(q.Ranges, &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)})
	}
	begun := time.Now()
	c.operateAt(c.sets[0], stop, func(ctx context.Context, addr string, op *process) bool {
		_, _ = setAdminConn{c.net, op, addr}.SetMove(ctx, q)
		// Also if the answer is lost: the move is under way, or has been already.
		return c.moveOf(ranges[0]) != 0
	})
	for id := c.moveOf(ranges[0]); id != 0 && c.moveOf(ranges[0]) == id; {
		select {
		case <-stop:
			return
		default:
			time.Sleep(20 * time.Millisecond)
		}
		if abort > 0 && time.Since(begun) > abort {
			abort = 0
			c.operateAt(c.sets[0], stop, func(ctx context.Context, addr string, op *process) bool {
				_, err := setAdminConn{c.net, op, addr}.SetAbort(ctx, &seqpb.SetAbortRequest{Id: uint64(id)})
				return err == nil
			})
		}
	}
}

// moveOf is the move under way that takes a range along; 0 if none does.
func (c *Cluster) moveOf(r sets.Range) sets.MoveID {
	d := c.directory()
	if d == nil {
		return 0
	}
	for i := range d.Directory.Moves {
		if m := &d.Directory.Moves[i]; !m.Over() && sets.OverlapAny(m.Ranges, r) {
			return m.ID
		}
	}
	return 0
}

// moved counts the moves that were carried out, and their parts.
func (c *Cluster) moved() (moves, parts int) {
	if d := c.directory(); d != nil {
		for i := range d.Directory.Moves {
			m := &d.Directory.Moves[i]
			parts += int(m.Parts)
			if m.State == sets.MoveDone {
				moves++
			}
		}
	}
	return moves, parts
}

// A range goes to the other Set; the next time that it is picked it goes back.
func injectMigrate(x *nemesis) bool {
	slice, abort := x.r.below(4), time.Duration(0)
	if x.r.chance(0.2) {
		abort = x.r.between(time.Millisecond, time.Second)
	}
	r := x.c.slices()[slice]
	if !x.quiet([]string{r.String()}) {
		return false
	}
	from, to, ranges := x.c.whereTo(r)
	if len(ranges) == 0 {
		return false
	}
	end := x.begin(history.Fault{Name: "migrate", Node: from}, r.String())
	x.wg.Go(func() {
		x.c.migrate(from, to, ranges, abort, x.stop)
		end()
	})
	return true
}

// The Sets' stores cannot reach each other: whoever waits for a verdict waits.
func injectPartitionSets(x *nemesis) bool {
	d, dir := x.r.between(500*time.Millisecond, 6*time.Second), x.r.below(directions)
	if !x.quiet([]string{"between sets"}) {
		return false
	}
	end := x.begin(history.Fault{Name: "partition-sets"}, "between sets")
	for _, id := range x.c.sets[0].stores {
		x.c.cutOff(id, x.c.sets[1].stores, dir)
	}
	x.later(d, func() {
		for _, id := range x.c.sets[0].stores {
			x.c.join(id, x.c.sets[1].stores)
		}
		end()
	})
	return true
}
