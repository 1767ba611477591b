package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/cluster"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// inproc is a cluster in this process: three stores with real files, and one
// AllocSvr that is called without a network.
type inproc struct {
	ks      *keyset
	cluster *cluster.Cluster
	server  *allocsvr.Server
	space   ids.Space
	dir     string
	// shm is where the arena is, as that of a node would be; "" where there is no shared memory.
	shm string
	// names has the identities of names, which cost a hash to make; nil for uids.
	names []ids.Key
}

const inprocStartTimeout = 30 * time.Second

func openInproc(ctx context.Context, c *config) (_ target, err error) {
	p := &inproc{ks: newKeyset(c)}
	if p.dir, err = os.MkdirTemp("", "seqbench-"); err != nil {
		return nil, fmt.Errorf("no temporary directory: %w: see TMPDIR", err)
	}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	if p.shm, err = os.MkdirTemp("/dev/shm", "seqbench-"); err != nil {
		p.shm = ""
	}
	if p.cluster, err = cluster.Start(cluster.Options{Dir: p.dir, Allocs: 1, StopLinger: time.Millisecond, ArenaPath: p.arenaPath}); err != nil {
		return nil, fmt.Errorf("the cluster did not start: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, inprocStartTimeout)
	defer cancel()
	if err = p.cluster.WaitReady(ctx); err != nil {
		return nil, fmt.Errorf("the cluster is not ready: %s: try again", oneLine(err))
	}
	p.server = p.cluster.Alloc(0).Server
	if p.space, err = p.server.Space(c.space); err != nil {
		return nil, cli.Usagef("%w: see --space", err)
	}
	if err = fits(p.space, c, p.ks); err != nil {
		return nil, err
	}
	if p.ks.names {
		p.names = make([]ids.Key, c.keys)
		for i := range p.names {
			if p.names[i], err = idOf(p.space, p.ks, i); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *inproc) key(i int) ids.Key {
	if p.names != nil {
		return p.names[i]
	}
	return ids.Key{Space: p.space.ID, Hi: p.ks.uid(i)}
}

func (p *inproc) keys() *keyset  { return p.ks }
func (p *inproc) caller() caller { return &inprocCaller{p: p} }
func (p *inproc) bulk() caller   { return &inprocCaller{p: p} }

// current of a cluster that was made for this run: nothing was issued.
func (p *inproc) current(_ context.Context, _ []int, into []uint64) error {
	clear(into)
	return nil
}

func (p *inproc) close() error {
	if p.cluster != nil {
		p.cluster.Kill() // nobody needs the numbers any more: nothing is to be handed back
	}
	err := os.RemoveAll(p.dir)
	if p.shm != "" {
		err = errors.Join(err, os.RemoveAll(p.shm))
	}
	return err
}

func (p *inproc) arenaPath(node string) string {
	return filepath.Join(cmp.Or(p.shm, p.dir), node+".arena")
}

type inprocCaller struct {
	p *inproc
	requester
}

// alloc takes one key by the hot path, and more by what serves a decoded request.
func (a *inprocCaller) alloc(keys []int, into []number) {
	if len(keys) == 1 {
		r, err := a.p.server.AllocOne(context.Background(), a.p.key(keys[0]), 1, nil)
		if err != nil {
			into[0] = number{err: err, unknown: unknownOutcome(err)}
			return
		}
		into[0] = number{seq: uint64(r.First), hole: r.HoleTo != 0}
		return
	}
	rep, err := a.p.server.Alloc(context.Background(), a.request(a.p.space.Name, a.p.ks, keys))
	if err != nil {
		fail(into, err, unknownOutcome(err))
		return
	}
	believe(rep, into)
}
