package node

import (
	"context"
	"net"
)

// undo takes back the steps of a start that failed, the last one first.
type undo struct{ steps []func() }

func newUndo() *undo { return &undo{} }

func (u *undo) add(f func()) { u.steps = append(u.steps, f) }

func (u *undo) run() {
	for i := len(u.steps) - 1; i >= 0; i-- {
		u.steps[i]()
	}
}

func closeAll(lns ...net.Listener) {
	for _, ln := range lns {
		if ln != nil {
			ln.Close()
		}
	}
}

// stopNow stops without waiting for anybody.
func stopNow(stop func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = stop(ctx)
}
