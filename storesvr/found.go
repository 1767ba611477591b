package storesvr

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// foundPause follows a directory that did not answer; it doubles up to foundPauseMax.
	foundPause    = 200 * time.Millisecond
	foundPauseMax = 5 * time.Second
)

// founding are the first commands of a new Set. That of a cluster founds the
// directory and owns everything; any other takes the cluster from the directory,
// for which it waits, and owns nothing.
func (l *leadership) founding() ([]state.Command, error) {
	cfg := &l.n.cfg
	g := state.Genesis{Cluster: cfg.Cluster, ClusterID: cfg.ClusterID, Set: cfg.Set, Sections: cfg.Sections, Spaces: cfg.Spaces}
	var todo []state.Command
	if len(cfg.Directory) == 0 {
		if g.ClusterID == "" {
			g.ClusterID = newClusterID()
		}
		todo = append(todo, g.OwningAll())
	} else {
		rep, p, err := l.awaitDirectory()
		if err != nil {
			return nil, err
		}
		g.ClusterID = rep.ClusterId
		if g.Spaces, err = wire.ParseSpaces(rep.Spaces); err != nil {
			return nil, err
		}
		todo = append(todo, g, state.PutMap{Published: p})
	}
	for _, p := range cfg.Peers {
		todo = append(todo, state.PutStore{Node: p})
	}
	return todo, nil
}

// awaitDirectory asks until there is an answer that fits.
func (l *leadership) awaitDirectory() (*seqpb.DirectoryReply, sets.Published, error) {
	n := l.n
	pause0 := foundPause
	for {
		rep, err := callSet(l.ctx, n.others, "", n.cfg.Directory, setCallTimeout, func(ctx context.Context, c SetsConn) (*seqpb.DirectoryReply, error) {
			return c.Directory(ctx, &seqpb.DirectoryRequest{Cluster: n.cfg.Cluster, ClusterId: n.cfg.ClusterID})
		})
		var p sets.Published
		if err == nil {
			if p, err = sets.DecodePublished(rep.Published); err == nil && p.Home == n.cfg.Set {
				err = &ConfigError{Key: "set", Reason: "the directory is in a set of this name, " + n.cfg.Set + ": choose another"}
			}
		}
		if err == nil {
			return rep, p, nil
		}
		if l.ctx.Err() != nil {
			return nil, p, l.ctx.Err()
		}
		l.log.Warn("this set is not founded yet: it waits for the directory to say of which cluster it is",
			zap.Strings("directory", n.cfg.Directory), zap.Duration("again_in", pause0), zap.Error(err))
		if !pause(l.ctx, pause0) {
			return nil, p, l.ctx.Err()
		}
		pause0 = min(2*pause0, foundPauseMax)
	}
}

func newClusterID() string { return uuid.NewString() }

// beginSets starts what a leader does about other Sets.
func (l *leadership) beginSets() {
	l.wg.Go(l.resolveParts)
	l.wg.Go(l.sweepLoop)
	if l.n.hasDirectory() {
		l.wg.Go(l.driveMoves)
		return
	}
	l.wg.Go(l.followMap)
}
