package sim

import (
	"slices"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// issue is what one attempt of a client's call was given when its server answered,
// whether or not the client came to hear it. Copies that the network made are none.
type issue struct {
	key   string
	id    history.RequestID
	first int64
	n     uint32
	by    string
	at    int64 // a stamp of the history
}

// issuesOf are the keys of an answer that took numbers.
func issuesOf(by string, at int64, req *seqpb.AllocRequest, rep *seqpb.AllocReply) (all []issue) {
	idle := idleKeys(rep)
	for i, first := range rep.First {
		if idle[uint32(i)] {
			continue
		}
		x := issue{key: keyText(req, i), first: int64(first), n: count(req, i), by: by, at: at}
		if i < len(req.RequestIds) {
			copy(x.id[:], req.RequestIds[i])
		}
		all = append(all, x)
	}
	return all
}

// untold are the issues that cannot be of a call that was told the truth: it was
// told these numbers, or that it may have got some. The check of the history would
// take some of them for those of other calls whose outcome is open.
//
// A call without a request id makes one attempt whose outcome is open, its last. One
// with an id may make many, so that here it only must not have been told that it got
// nothing; what it was told besides is the window's business.
func untold(issues []issue, h *history.History) (all []issue) {
	type call struct {
		key string
		id  history.RequestID
		n   uint32
	}
	type numbers struct {
		key   string
		first int64
	}
	told := map[numbers]bool{}
	open := map[call][]int64{} // when they were called
	for i := range h.Ops {
		o := &h.Ops[i]
		c := call{o.Key, o.Request, o.N}
		switch {
		case o.Kind != history.Alloc || o.Outcome == history.Failed:
		case !o.Request.IsZero() || o.Outcome == history.Unknown:
			open[c] = append(open[c], o.Call)
		default:
			told[numbers{o.Key, o.First}] = true
		}
	}
	for _, calls := range open {
		slices.Sort(calls)
	}
	slices.SortFunc(issues, func(a, b issue) int { return int(a.at - b.at) })
	for _, x := range issues {
		if x.id.IsZero() && told[numbers{x.key, x.first}] {
			continue
		}
		c := call{x.key, x.id, x.n}
		calls := open[c]
		switch {
		case len(calls) == 0 || calls[0] > x.at:
			all = append(all, x)
		case x.id.IsZero():
			open[c] = calls[1:] // the first, so that later issues find one that was called before them
		}
	}
	return all
}
