package state

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// A result starts with its refusal in the low bits, and resultHole when a hole follows.
const (
	resultRefusalMask = 0x1f
	resultHole        = 0x20
)

const (
	ownedBytesMin  = 2
	resultBytesMin = 4
)

// EncodeReply appends the encoding of r to dst.
func EncodeReply(dst []byte, r Reply) []byte {
	dst = append(dst, formatVersion, byte(r.Refusal))
	dst = putBool(dst, r.Session != SessionState{})
	if r.Session != (SessionState{}) {
		dst = putSession(dst, &r.Session)
	}
	dst = putLen(dst, len(r.Owned))
	for _, o := range r.Owned {
		dst = putUvarint(putUvarint(dst, o.Section), o.Epoch)
	}
	dst = putAssignments(dst, r.Applied)
	dst = putLen(dst, len(r.Results))
	for i := range r.Results {
		dst = putResult(dst, &r.Results[i])
	}
	return dst
}

// DecodeReply reads what EncodeReply wrote; its error is a *CodecError.
func DecodeReply(b []byte) (Reply, error) {
	r := newReader("reply", b)
	rep := Reply{Refusal: Refusal(r.byte("refusal"))}
	if r.bool("has session") {
		rep.Session = r.sessionState()
	}
	rep.Owned = items(r, r.count("owned sections", ownedBytesMin), func() OwnedSection {
		return OwnedSection{Section: r.section(), Epoch: r.epoch()}
	})
	rep.Applied = r.assignments()
	if n := r.count("results", resultBytesMin); n > 0 {
		rep.Results = make([]OpResult, n)
		for i := range rep.Results {
			if r.result(&rep.Results[i]); r.err != nil {
				break
			}
		}
	}
	if err := r.done(); err != nil {
		return Reply{}, err
	}
	return rep, nil
}

func putResult(dst []byte, res *OpResult) []byte {
	head := byte(res.Refusal) & resultRefusalMask
	if res.HoleTo != 0 {
		head |= resultHole
	}
	dst = putUvarint(append(dst, head), res.Floor)
	dst = putUvarint(dst, res.Bound)
	dst = putUvarint(dst, res.SectionEpoch)
	if res.HoleTo != 0 {
		dst = putUvarint(putUvarint(dst, res.HoleFrom), res.HoleTo)
		dst = append(dst, byte(res.HoleCause))
	}
	return dst
}

func (r *reader) result(res *OpResult) {
	at := r.off
	head := r.byte("result")
	if head&^(resultHole|resultRefusalMask) != 0 {
		r.off = at
		r.fail(fmt.Sprintf("unknown flags in result head %#x", head))
		return
	}
	res.Refusal = Refusal(head & resultRefusalMask)
	res.Floor, res.Bound = r.seq("floor"), r.seq("bound")
	res.SectionEpoch = r.epoch()
	if head&resultHole != 0 {
		res.HoleFrom, res.HoleTo = r.seq("hole"), r.seq("hole")
		res.HoleCause = Cause(r.byte("cause"))
		if res.HoleFrom == 0 || res.HoleFrom > res.HoleTo {
			r.fail(fmt.Sprintf("hole %d..%d is not one", res.HoleFrom, res.HoleTo))
		}
	}
}

func putSession(dst []byte, s *SessionState) []byte {
	dst = putUvarint(dst, s.ID)
	dst = putUvarint(dst, s.Incarnation)
	dst = putUvarint(dst, s.Acted)
	dst = putUvarint(dst, s.LastBatch)
	dst = putTexts(dst, s.Node, s.Addr, s.RedisAddr, s.HTTPAddr, s.Version)
	dst = putBool(dst, s.Leaving)
	return putUvarint(dst, s.Changed)
}

func (r *reader) sessionState() SessionState {
	return SessionState{
		ID: r.session(), Incarnation: r.incarnation(), Acted: r.incarnation(), LastBatch: ids.BatchSeq(r.uvarint("batch sequence")),
		Node: r.text("node"), Addr: r.text("address"), RedisAddr: r.text("redis address"),
		HTTPAddr: r.text("http address"), Version: r.text("version"),
		Leaving: r.bool("leaving"), Changed: r.uvarint("changed"),
	}
}
