package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// Processes makes a cluster of processes a Cluster; ttl is its lease's, and half
// what Move moves.
func Processes(p *cluster.Processes, ttl time.Duration, half ...sets.Range) Cluster {
	return processes{p, ttl, half}
}

type processes struct {
	p    *cluster.Processes
	ttl  time.Duration
	half []sets.Range
}

func (c processes) Sets() (all []string) {
	for _, m := range c.p.Stores {
		if !slices.Contains(all, m.Set) {
			all = append(all, m.Set)
		}
	}
	return all
}

func (c processes) Allocs() []string        { return names(c.p.Allocs) }
func (c processes) Stores() []string        { return names(c.p.Stores) }
func (c processes) LeaseTTL() time.Duration { return c.ttl }

func names(ps []*cluster.Process) (out []string) {
	for _, p := range ps {
		out = append(out, p.ID)
	}
	return out
}

// with does something to the node of a name.
func (c processes) with(node string, do func(*cluster.Process) error) error {
	for _, ps := range [][]*cluster.Process{c.p.Allocs, c.p.Stores} {
		for _, p := range ps {
			if p.ID == node {
				return do(p)
			}
		}
	}
	return fmt.Errorf("no node %q", node)
}

func (c processes) Leader(ctx context.Context) (string, error) {
	p, err := c.p.Leader(ctx)
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

func (c processes) LeaderOf(ctx context.Context, set string) (string, error) {
	p, err := c.p.LeaderOf(ctx, set)
	if err != nil {
		return "", err
	}
	return p.ID, nil
}

func (c processes) Kill(node string) error       { return c.with(node, (*cluster.Process).Kill) }
func (c processes) LoseMemory(node string) error { return c.with(node, (*cluster.Process).RemoveArena) }
func (c processes) Pause(node string) error      { return c.with(node, (*cluster.Process).Pause) }
func (c processes) Continue(node string) error   { return c.with(node, (*cluster.Process).Resume) }

func (c processes) Stop(ctx context.Context, node string) error {
	return c.with(node, func(p *cluster.Process) error { return p.Term(ctx) })
}

func (c processes) Start(ctx context.Context, node string) error {
	return c.with(node, func(p *cluster.Process) error { return p.StartReady(ctx) })
}

// admin asks any node of the Set of a node that answers: each forwards to the leader.
func (c processes) admin(ctx context.Context, node string, ask func(*rpc.AdminConn) error) error {
	set := ""
	if err := c.with(node, func(p *cluster.Process) error { set = p.Set; return nil }); err != nil {
		return err
	}
	err := errors.New("no node runs")
	for _, ps := range [][]*cluster.Process{c.p.StoresOf(set), c.p.AllocsOf(set)} {
		for _, p := range ps {
			if !p.Running() {
				continue
			}
			var conn *rpc.AdminConn
			if conn, err = rpc.DialAdmin(p.RPCAddr); err != nil {
				continue
			}
			err = errors.Join(ask(conn), conn.Close())
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	}
	return err
}

func (c processes) Drain(ctx context.Context, node string) error {
	return c.admin(ctx, node, func(conn *rpc.AdminConn) error {
		progress, err := conn.Drain(ctx, &seqpb.DrainRequest{Node: node})
		if err != nil {
			return err
		}
		for {
			switch m, err := progress.Recv(); {
			case err != nil:
				return errors.Join(err, progress.Close())
			case refused(m.Refusal) != nil:
				return errors.Join(refused(m.Refusal), progress.Close())
			case m.Done:
				return progress.Close()
			}
		}
	})
}

func (c processes) Undrain(ctx context.Context, node string) error {
	return c.admin(ctx, node, func(conn *rpc.AdminConn) error {
		m, err := conn.Undrain(ctx, &seqpb.DrainRequest{Node: node})
		if err != nil {
			return err
		}
		return refused(m.Refusal)
	})
}

func refused(r *seqpb.Refusal) error {
	if r == nil || r.Code == seqpb.RefusalCode_REFUSAL_NONE {
		return nil
	}
	return errors.New(r.Message)
}
