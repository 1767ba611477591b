package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

// simSet is one Set: its name and its machines.
type simSet struct {
	name           string
	stores, allocs []string
}

// The Set that has the directory, and owns everything at first, and the other one.
const (
	home = "home"
	away = "away"
)

// newSet names the machines of a Set: s1 and a1 at home, t1 and b1 away.
func newSet(i int, opt Options) *simSet {
	set := &simSet{name: []string{home, away}[i]}
	for n := range opt.Stores {
		set.stores = append(set.stores, fmt.Sprintf("%c%d", "st"[i], n+1))
	}
	for n := range opt.Allocs + opt.Spares {
		set.allocs = append(set.allocs, fmt.Sprintf("%c%d", "ab"[i], n+1))
	}
	return set
}

func rpcAddrs(ids []string) (addrs []string) {
	for _, id := range ids {
		addrs = append(addrs, rpcAddr(id))
	}
	return addrs
}

func (c *Cluster) setNamed(name string) *simSet {
	for _, set := range c.sets {
		if set.name == name {
			return set
		}
	}
	return nil
}

// setOf is the Set of a machine.
func (c *Cluster) setOf(host string) *simSet {
	if h := c.stores[host]; h != nil {
		return h.set
	}
	return c.allocs[host].set
}

// amongSets makes a StoreSvr one of several Sets.
func (c *Cluster) amongSets(cfg *storesvr.Config, h *storeHost, p *process) {
	if h.set != c.sets[0] {
		cfg.Directory = rpcAddrs(c.sets[0].stores)
	}
	cfg.PartKeys, cfg.FreezeTimeout = c.opt.PartKeys, c.opt.FreezeTimeout
	cfg.DialSets = func(addr string) (storesvr.SetsConn, error) { return setsConn{c.net, p, addr}, nil }
	cfg.DialSetAdmin = func(addr string) (storesvr.SetAdminConn, error) { return setAdminConn{c.net, p, addr}, nil }
	cfg.DialAdmin = func(addr string) (storesvr.AdminConn, error) { return adminConn{c.net, p, addr}, nil }
}

// foundSets makes the second Set known to the directory.
func (c *Cluster) foundSets() {
	for _, set := range c.sets[1:] {
		known := false
		c.operateAt(c.sets[0], nil, func(ctx context.Context, addr string, from *process) bool {
			a := setAdminConn{c.net, from, addr}
			list, err := a.SetList(ctx, &seqpb.SetListRequest{})
			for _, s := range list.GetSets() {
				known = known || s.Name == set.name
			}
			if err == nil && !known {
				_, _ = a.SetCreate(ctx, &seqpb.SetCreateRequest{Name: set.name, Stores: rpcAddrs(set.stores)})
			}
			return known
		})
		if !known {
			c.monitor.violation("set %s was not made known to the directory", set.name)
		}
	}
}

// newStorage is an empty disk of a Set's StoreSvr. With several Sets, each entry
// that is applied on it is looked at.
func (c *Cluster) newStorage(set *simSet) storesvr.Storage {
	s := storesvr.MemoryStorage()
	if c.custody != nil {
		s.Keys = watchedKeys{s.Keys, set.name, c.custody}
	}
	return s
}

// watchedKeys shows every state that a StoreSvr goes through.
type watchedKeys struct {
	storesvr.Backend
	set     string
	custody *custody
}

func (k watchedKeys) Commit(index uint64, meta *state.Meta) {
	k.custody.applied(k.set, index, meta)
	k.Backend.Commit(index, meta)
}

// Each is for examine.
func (k watchedKeys) Each(f func(ids.Key, state.Record) bool) {
	k.Backend.(interface {
		Each(func(ids.Key, state.Record) bool)
	}).Each(f)
}

// movesUnderWay are those of the directory as far as anybody has applied it.
func (c *Cluster) directory() (d *state.Meta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	best := uint64(0)
	for _, id := range c.sets[0].stores {
		if n := c.stores[id].node; n != nil {
			_ = n.Inspect(func(applied uint64, st *state.State) {
				if applied > best && st.Meta.Directory != nil {
					m := st.Meta.Clone()
					best, d = applied, &m
				}
			})
		}
	}
	return d
}

// awaitMoves waits until no move is under way.
func (c *Cluster) awaitMoves(ctx context.Context) {
	for {
		left := 0
		d := c.directory()
		if d != nil {
			for i := range d.Directory.Moves {
				if m := &d.Directory.Moves[i]; !m.Over() {
					left++
					if ctx.Err() != nil {
						c.monitor.violation("move %d (%s to %s) has not come to its end %v after the faults: part %d is %v", m.ID, m.From, m.To, c.opt.Patience, m.Part, m.PartState)
					}
				}
			}
		}
		if d != nil && left == 0 || ctx.Err() != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
