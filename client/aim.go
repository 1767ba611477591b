package client

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// hint is an owner that a node named when it denied a key. Epochs are each Set's
// own, so they are compared within one Set only.
type hint struct {
	// owner is its address; "" for no hint.
	owner string
	// set is whose owner it is, and epoch that of its section.
	set   string
	epoch ids.Epoch
	// over is the Set that the table had the key in, and overEpoch its section's, if
	// that is another one: the key has left it, as its own owner said.
	over      string
	overEpoch ids.Epoch
}

// beats tells whether the hint is newer than a route.
func (h *hint) beats(r *router.Route) bool {
	if h.owner == "" {
		return false
	}
	if h.set == r.Set {
		return h.epoch > r.Epoch
	}
	return h.over == r.Set && h.overEpoch == r.Epoch
}

// aim is the address to send to by a route, or by a hint that is newer; "" if there is no owner.
func (o *attempt) aim(r *router.Route) string {
	o.set, o.epoch = r.Set, r.Epoch
	if o.hint.beats(r) {
		o.set, o.epoch = o.hint.set, o.hint.epoch
		return o.hint.owner
	}
	return r.Owner.Addr
}

// doubt keeps what a failed attempt says of the owner, and tells whether
// another node than the one that was asked is now known to be it.
func (rs *routes) doubt(o *attempt, id ids.Key, r *reply) (elsewhere bool) {
	switch r.code {
	case codeBounced, seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_READY:
		return false // nothing against the owner
	}
	asked := o.node.addr
	route, err := rs.hub.Load().Lookup(id)
	if err != nil {
		return false
	}
	if r.code == seqpb.Code_CODE_NOT_OWNER {
		o.denied++
		if o.denied >= deniedMax {
			o.denied = 0
			rs.refreshReplacing()
		}
	}
	o.hint = hint{}
	if r.hint.owner != "" && r.hint.owner != asked {
		if h := r.hint.taken(&route, o.set, asked); h.beats(&route) {
			o.hint = h
			return true
		}
	}
	return route.Owned() && route.Owner.Addr != asked
}

// taken is the hint of a node that was asked for a key, as it counts against the
// route. The node's word counts if it knows of a later epoch than the table, or
// if the table names the very node that says no, or nobody.
func (h hint) taken(r *router.Route, askedSet, asked string) hint {
	if h.set == "" {
		h.set = askedSet // a node that does not say means its own
	}
	corrects := r.Owner.Addr == asked || !r.Owned()
	switch {
	case h.set != r.Set && corrects:
		h.over, h.overEpoch = r.Set, r.Epoch
	case h.set == r.Set && corrects && (h.epoch == 0 || h.epoch == r.Epoch):
		h.epoch = r.Epoch + 1
	}
	return h
}
