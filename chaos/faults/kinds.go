package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// kind is one way to do harm.
type kind struct {
	name string
	// losses and planned as in history.Fault.
	losses  int
	planned bool
	// target picks the node.
	target func(*run) (string, error)
	// strike does it and lifts it again.
	strike func(*run, string) error
	// sets: it takes several Sets.
	sets bool
	// skip is why it cannot be done here; empty if it can.
	skip string
}

var kinds = []kind{
	{name: "kill-alloc", target: anAlloc, strike: killAlloc},
	{name: "lose-alloc", losses: 1, target: anAlloc, strike: loseAlloc},
	{name: "pause-alloc", losses: 1, target: anAlloc, strike: pauseAlloc},
	{name: "kill-store", target: aStore, strike: killStore},
	{name: "kill-leader", target: theLeader, strike: killStore},
	{name: "pause-leader", target: theLeader, strike: pauseStore},
	{name: "drain", planned: true, target: anAlloc, strike: drain},
	{name: "restart-alloc", planned: true, target: anAlloc, strike: restart},
	{name: "restart-store", planned: true, target: aStore, strike: restart},
	{name: "partition", skip: "needs network namespaces, which this program does not set up yet"},
	{name: "clock", skip: "needs a clock of its own for each process, which this program does not set up yet"},
	{name: "disk-full", skip: "needs a file system of its own for each node, which this program does not set up yet"},
	{name: "migrate", planned: true, sets: true, target: theHalf, strike: migrate},
}

// SlowRestart is recorded beside kill-alloc when the process was back too
// late for its lease: its sections may have been given away, as after a machine loss.
const SlowRestart = "slow-restart"

// Names of all kinds.
func Names() []string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return out
}

// Plan splits the names that were asked for into those that can be done to a
// cluster of so many Sets and those that are skipped ("NAME: why"); an unknown name
// is an error.
func Plan(names []string, sets int) (can, skipped []string, err error) {
	for _, n := range names {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == n })
		switch {
		case i < 0:
			return nil, nil, fmt.Errorf("unknown fault %q: known are %v", n, Names())
		case kinds[i].skip != "":
			skipped = append(skipped, n+": "+kinds[i].skip)
		case kinds[i].sets && sets < 2:
			skipped = append(skipped, n+": needs several Sets, and there is one")
		default:
			can = append(can, n)
		}
	}
	return can, skipped, nil
}

func pick(rng *rand.Rand, nodes []string) (string, error) {
	if len(nodes) == 0 {
		return "", fmt.Errorf("no node to strike")
	}
	return nodes[rng.IntN(len(nodes))], nil
}

func anAlloc(r *run) (string, error) { return pick(r.rng, r.c.Allocs()) }
func aStore(r *run) (string, error)  { return pick(r.rng, r.c.Stores()) }

// theLeader is that of any Set.
func theLeader(r *run) (string, error) {
	if all := r.c.Sets(); len(all) > 1 {
		return r.c.LeaderOf(r.ctx, all[r.rng.IntN(len(all))])
	}
	return r.c.Leader(r.ctx)
}

// theHalf is the Set that has the half of the keys that is moved about.
func theHalf(r *run) (string, error) { return r.c.Sets()[r.half], nil }

// migrate takes the half to another Set. The next time it goes on from there, so
// that the faults in between find keys in each.
func migrate(r *run, from string) error {
	all := r.c.Sets()
	to := (r.half + 1 + r.rng.IntN(len(all)-1)) % len(all)
	if err := r.c.Move(r.ctx, from, all[to]); err != nil {
		return err
	}
	r.half = to
	return nil
}

func killAlloc(r *run, node string) error {
	begin, stamp := time.Now(), r.rec.Stamp()
	if err := r.c.Kill(node); err != nil {
		return err
	}
	err := r.c.Start(r.ctx, node)
	if time.Since(begin) > r.c.LeaseTTL()*8/10 {
		r.rec.Add(history.Fault{Name: SlowRestart, Node: node, Start: stamp, End: r.rec.Stamp(), Losses: 1})
	}
	return err
}

// loseAlloc is the loss of a machine: the process and its memory. Another one
// of the same name comes up after the lease has run out.
func loseAlloc(r *run, node string) error {
	if err := r.c.Kill(node); err != nil {
		return err
	}
	if err := r.c.LoseMemory(node); err != nil {
		return err
	}
	wait(r.running, 2*r.c.LeaseTTL())
	return r.c.Start(r.ctx, node)
}

func pauseAlloc(r *run, node string) error { return pause(r, node, 3*r.c.LeaseTTL()) }
func pauseStore(r *run, node string) error { return pause(r, node, r.c.LeaseTTL()) }

func pause(r *run, node string, long time.Duration) error {
	if err := r.c.Pause(node); err != nil {
		return err
	}
	wait(r.running, long)
	return r.c.Continue(node)
}

func killStore(r *run, node string) error {
	if err := r.c.Kill(node); err != nil {
		return err
	}
	wait(r.running, r.c.LeaseTTL())
	return r.c.Start(r.ctx, node)
}

func drain(r *run, node string) error {
	if err := r.c.Drain(r.ctx, node); err != nil {
		return err
	}
	return r.c.Undrain(r.ctx, node)
}

func restart(r *run, node string) error {
	if err := r.c.Stop(r.ctx, node); err != nil {
		return err
	}
	return r.c.Start(r.ctx, node)
}

// wait lets time pass; false if the end of the run cut it short.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
