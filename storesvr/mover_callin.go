package storesvr

import (
	"context"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
)

// What owners hold of a part is handed back under its freeze, and copied then, so that
// parts of it are small. So owners are asked before, ahead of the copy, for what nobody
// uses of it. It is no more than a wish: an owner that is of an older version, or whose keys
// are in use, has them until the freeze.
const (
	// heldPart: when one of so many records is held, the owners are asked.
	heldPart = 8
	// callInLook is the time between looks at how many are still held, and callInStuck
	// how many in a row may find no fewer.
	callInLook  = 25 * time.Millisecond
	callInStuck = 8
	// callInSkips slices are not asked for after one that stayed held.
	callInSkips = 16
)

// calls is how many slices are not to be asked for.
type calls struct{ skips int }

// muchHeld: it is worth asking.
func (s *slice) muchHeld(held int) bool { return held*heldPart > len(s.records) }

// callIn answers a new copy of the slice, of what is left once its owners have handed
// back what they would.
func (v *mover) callIn(ctx context.Context, s *slice) (*slice, error) {
	if v.calls.skips > 0 {
		v.calls.skips--
		return s, nil
	}
	held, err := v.heldOf(ctx, s.r)
	for stuck := 0; err == nil && s.muchHeld(held) && stuck < callInStuck; {
		// While a part is frozen owners see to that alone.
		if err = v.rest.wait(ctx); err == nil && !pause(ctx, callInLook) {
			err = ctx.Err()
		}
		before := held
		if err == nil {
			held, err = v.heldOf(ctx, s.r)
		}
		if stuck++; held < before {
			stuck = 0
		}
	}
	if err != nil {
		return nil, err
	}
	if s.muchHeld(held) {
		v.calls.skips = callInSkips
	}
	if err := v.rest.wait(ctx); err != nil {
		return nil, err
	}
	return v.copyRange(ctx, s.r)
}

// heldOf asks for what owners have of a range, and answers how much that is.
func (v *mover) heldOf(ctx context.Context, r sets.Range) (held int, err error) {
	for after := (ids.Key{}); ; {
		q := &seqpb.ExportRequest{Range: rangePB(r), Limit: exportMax, Digests: true, HandBack: true}
		rep, last, err := v.askExport(ctx, v.from, q, after)
		if err != nil {
			return 0, err
		}
		if held += int(rep.Held); rep.Done {
			return held, nil
		}
		after = last
	}
}
