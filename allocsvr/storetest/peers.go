package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// Peers is the network between AllocSvrs. The zero value delivers at once.
type Peers struct {
	mu    sync.Mutex
	at    map[string]seqpb.Peer
	delay time.Duration
	hook  func(*seqpb.TakeWindowRequest) bool
	calls int
}

// Listen makes p reachable at addr; nil: nobody is.
func (ps *Peers) Listen(addr string, p seqpb.Peer) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.at == nil {
		ps.at = map[string]seqpb.Peer{}
	}
	ps.at[addr] = p
}

// SetDelay delays every message by d.
func (ps *Peers) SetDelay(d time.Duration) { ps.mu.Lock(); ps.delay = d; ps.mu.Unlock() }

// Hook sees every request, may change it, and says whether it is delivered.
func (ps *Peers) Hook(f func(*seqpb.TakeWindowRequest) bool) {
	ps.mu.Lock()
	ps.hook = f
	ps.mu.Unlock()
}

// Calls that were made so far.
func (ps *Peers) Calls() int { ps.mu.Lock(); defer ps.mu.Unlock(); return ps.calls }

// Dial is a handover.DialPeer.
func (ps *Peers) Dial(addr string) (handover.PeerConn, error) { return &peerConn{ps, addr}, nil }

type peerConn struct {
	ps   *Peers
	addr string
}

func (c *peerConn) Close() error { return nil }

func (c *peerConn) TakeWindow(ctx context.Context, req *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	c.ps.mu.Lock()
	c.ps.calls++
	p, delay, hook := c.ps.at[c.addr], c.ps.delay, c.ps.hook
	c.ps.mu.Unlock()
	if p == nil {
		return nil, errors.New("storetest: connection refused")
	}
	b, err := req.Marshal(nil)
	if err != nil {
		return nil, err
	}
	req = &seqpb.TakeWindowRequest{}
	if err := req.Unmarshal(b); err != nil {
		return nil, err
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-t.C:
	}
	if hook != nil && !hook(req) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.TakeWindow(ctx, req)
}
