package client

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// aim is the address to send to by a route, or by a hint that is newer; "" if there is no owner.
func (o *attempt) aim(r router.Route) string {
	o.set, o.epoch = r.Set, r.Epoch
	if o.hint != "" && o.hintEpoch > r.Epoch {
		o.epoch = o.hintEpoch
		return o.hint
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
	o.hint, o.hintEpoch = "", 0
	if r.hint != "" && r.hint != asked {
		// The node's word counts if it knows of a later epoch than the table,
		// or if the table names the very node that says no.
		epoch := r.hintEpoch
		if route.Owner.Addr == asked || !route.Owned() {
			if epoch == 0 || epoch == route.Epoch {
				epoch = route.Epoch + 1
			}
		}
		if epoch > route.Epoch {
			o.hint, o.hintEpoch = r.hint, epoch
			return true
		}
	}
	return route.Owned() && route.Owner.Addr != asked
}
