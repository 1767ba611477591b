package arena

import (
	"context"
	"sync"
	"sync/atomic"
)

// Guard tells when every reader that might still use a cell is gone. A reader
// enters before it looks a cell up and exits when done with it: two atomic
// operations on a stripe of its own. A writer that has made something unreachable
// waits for the readers that were there before.
//
// Readers count themselves in one of two phases. A phase that is not the present
// one gets no new readers (but for some that read the phase just before it
// turned), so it drains; then the phases turn. Whoever entered before a stamp was
// taken at turn t has left when turn t+2 is reached: both phases were seen empty,
// stripe by stripe, after the stamp.
type Guard struct {
	turn    atomic.Uint64
	waiting atomic.Int32
	stripes [guardStripes]guardStripe

	mu     sync.Mutex    // turning and stamping
	waiter chan struct{} // holds one token: the right to wait for notify
	notify chan struct{}
}

const guardStripes = 64

type guardStripe struct {
	inside [2]atomic.Int64
	_      [112]byte
}

// NewGuard makes a guard nobody has entered.
func NewGuard() *Guard {
	return &Guard{waiter: make(chan struct{}, 1), notify: make(chan struct{}, 1)}
}

// Token is one entry of a Guard.
type Token struct {
	g      *Guard
	inside *atomic.Int64
	stripe uint8
}

// Stripe is a number in [0, 64) that differs between most of those who are inside
// at the same time: for counters that they do not share.
func (t Token) Stripe() int { return int(t.stripe) }

// Enter begins a use of cells. Every Token must be exited, by any goroutine.
func (g *Guard) Enter() Token {
	stripe := stripeHint() % guardStripes
	n := &g.stripes[stripe].inside[g.turn.Load()&1]
	n.Add(1)
	return Token{g, n, uint8(stripe)}
}

// Exit ends the use of all cells found since Enter.
func (t Token) Exit() {
	if t.inside.Add(-1) == 0 && t.g.waiting.Load() != 0 {
		select {
		case t.g.notify <- struct{}{}:
		default: // a notice is already there
		}
	}
}

// Wait returns when everyone who had entered when it was called has left. It must
// not be called between Enter and Exit.
func (g *Guard) Wait(ctx context.Context) error {
	stamp := g.stamp()
	select {
	case g.waiter <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.waiter }()
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	for !g.passed(stamp) {
		select {
		case <-g.notify:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// stamp marks this moment.
func (g *Guard) stamp() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turn.Load()
}

// passed reports whether all readers of the stamp's moment have left, turning the phases as far as they allow.
func (g *Guard) passed(stamp uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.turn.Load() < stamp+2 {
		old := (g.turn.Load() + 1) & 1
		for i := range g.stripes {
			if g.stripes[i].inside[old].Load() != 0 {
				return false
			}
		}
		g.turn.Add(1)
	}
	return true
}
