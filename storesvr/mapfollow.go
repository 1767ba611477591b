package storesvr

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// mapWait is how long a question for a newer map waits at the directory.
	mapWait = 10 * time.Second
	// mapPause follows a directory that did not answer.
	mapPause = 500 * time.Millisecond
	// mapAlong is how long a newer map is left to the end of a part that this Set has a
	// hand in, which brings it along: a commit of its own would only hold that up.
	mapAlong = 100 * time.Millisecond
)

// followMap keeps this Set's copy of the map as new as the directory's. Without
// the directory the copy stays as it is, and everything else goes on.
func (l *leadership) followMap() {
	down := false
	for l.ctx.Err() == nil {
		err := l.askMap()
		if err == nil {
			l.tellStores()
			if down {
				l.log.Info("the directory answers again")
			}
			down = false
			continue
		}
		if l.ctx.Err() == nil && !down {
			l.log.Warn("the directory does not answer: the set map stays as it is", zap.Error(err))
		}
		down = true
		pause(l.ctx, mapPause)
	}
}

func (l *leadership) askMap() error {
	n := l.n
	var q seqpb.DirectoryRequest
	var home string
	if err := n.fsm.read(func(st *state.State) {
		m := &st.Meta
		q = seqpb.DirectoryRequest{Cluster: m.Genesis.Cluster, ClusterId: m.Genesis.ClusterID, WaitVersion: m.Published.Map.Version, WaitMs: millis(mapWait)}
		home = m.Published.Home
	}); err != nil {
		return err
	}
	rep, err := callSet(l.ctx, n.others, home, n.addresses(home), mapWait+setCallTimeout, func(ctx context.Context, c SetsConn) (*seqpb.DirectoryReply, error) {
		return c.Directory(ctx, &q)
	})
	if err != nil {
		return err
	}
	p, err := sets.DecodePublished(rep.Published)
	if err != nil || p.Map.Version <= q.WaitVersion {
		return err
	}
	if l.mapComesAlong(p.Map.Version) {
		return nil
	}
	_, err = n.propose(l.ctx, state.PutMap{Published: p})
	return err
}

// mapComesAlong waits, while a part that this Set has a hand in stands at the
// directory's verdict, for the map that comes with it.
func (l *leadership) mapComesAlong(version uint64) (came bool) {
	t := time.NewTimer(mapAlong)
	defer t.Stop()
	for {
		changed := l.n.changed.wait()
		stands := false
		_ = l.n.fsm.read(func(st *state.State) {
			m := &st.Meta
			came = m.Published.Map.Version >= version
			for _, o := range m.Out {
				stands = stands || o.Phase == state.OutSealed
			}
			for _, in := range m.In {
				stands = stands || in.Phase == state.InImporting
			}
		})
		if came || !stands {
			return came
		}
		select {
		case <-l.ctx.Done():
			return false
		case <-t.C:
			return false
		case <-changed:
		}
	}
}

// tellStores makes where this Set's stores are known to the directory, once it is
// in the map. A cluster of one Set changes its map for nothing like that: nobody
// needs it there, and its state stays as earlier versions wrote it.
func (l *leadership) tellStores() {
	n := l.n
	var home string
	var c state.UpdateSet
	differ := false
	_ = n.fsm.read(func(st *state.State) {
		m := &st.Meta
		home = m.Published.Home
		c = state.UpdateSet{Name: m.Genesis.Set, Stores: routeStores(m)}
		info, ok := m.Published.Info(c.Name)
		differ = ok && len(m.Published.Sets) > 1 && len(c.Stores) > 0 && !sameAddresses(info.Stores, c.Stores)
	})
	if !differ {
		return
	}
	if _, err := n.commandSet(l.ctx, home, c); err != nil && l.ctx.Err() == nil {
		l.log.Warn("the directory could not be told where this set's stores are", zap.Error(err))
	}
}

func sameAddresses(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// commandSet commits a command in a Set, which may be this one.
func (n *Node) commandSet(ctx context.Context, set string, c state.Command) (state.Reply, error) {
	q := &seqpb.SetCommandRequest{ClusterId: n.clusterID(), Set: set, Command: state.EncodeCommand(nil, c)}
	rep, err := askSet(ctx, n, set, commandTimeout, func(ctx context.Context, c SetsConn) (*seqpb.SetCommandReply, error) { return c.Command(ctx, q) })
	if err != nil {
		return state.Reply{}, err
	}
	return state.DecodeReply(rep.Outcome)
}

func (n *Node) clusterID() (id string) {
	_ = n.fsm.read(func(st *state.State) { id = st.Meta.Genesis.ClusterID })
	return id
}
