package client

import (
	"context"
	"sync"

	"github.com/seqsvr/seqsvr/router"
)

// pool has one node per address. A node that is in no table and that nobody
// uses is closed.
type pool struct {
	base   context.Context // ends when the client has drained
	opts   *options
	routes *routes
	// workers are counted while they have a batch under way, goroutines or not; all
	// end once the queues are empty and the calls under way are over.
	workers sync.WaitGroup

	mu    sync.Mutex
	nodes map[string]*node
}

func newPool(base context.Context, opts *options, r *routes) *pool {
	return &pool{base: base, opts: opts, routes: r, nodes: make(map[string]*node)}
}

// get is the node at an address; it connects when it is first used.
func (p *pool) get(addr string) *node {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[addr]
	if n == nil {
		n = &node{pool: p, addr: addr, lanes: make(map[laneKey]*lane)}
		n.unhook = context.AfterFunc(p.base, n.giveUpAll)
		p.nodes[addr] = n
	}
	return n
}

// stalls tells whether calls to an address get no answer just now.
func (p *pool) stalls(addr string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[addr]
	return n != nil && n.stalled.Load() > 0
}

// use runs f with the connection to an address, outside any queue.
func (p *pool) use(addr string, f func(Conn) error) error {
	n := p.get(addr)
	for !n.acquire() { // retired between get and acquire
		n = p.get(addr)
	}
	defer n.release()
	conn, err := n.connect()
	if err != nil {
		return &NotSent{Err: err}
	}
	return f(conn)
}

// follow makes the pool fit a table: nodes that are in it no longer are
// retired, and ops that wait for a node that has lost their section are sent on.
func (p *pool) follow(t *router.Table) {
	listed := make(map[string]bool)
	for _, s := range t.Sets {
		for i := range s.Nodes {
			listed[s.Nodes[i].Addr] = true
		}
	}
	p.mu.Lock()
	var gone, stay []*node
	for addr, n := range p.nodes {
		if listed[addr] {
			stay = append(stay, n)
		} else {
			delete(p.nodes, addr)
			gone = append(gone, n)
		}
	}
	p.mu.Unlock()
	for _, n := range gone {
		n.retire()
	}
	for _, n := range stay {
		n.bounce(func(o *op) bool {
			r, err := t.Lookup(o.id)
			return err == nil && r.Owned() && r.Owner.Addr != n.addr && !o.hint.beats(&r)
		})
	}
}

// close retires all nodes; the workers must have ended.
func (p *pool) close() {
	p.mu.Lock()
	nodes := p.nodes
	p.nodes = make(map[string]*node)
	p.mu.Unlock()
	for _, n := range nodes {
		n.retire()
	}
}
