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

// replyVersion is the first byte of a reply of a directory's command.
const replyVersion = 2

const (
	ownedBytesMin  = 2
	resultBytesMin = 4
)

// EncodeReply appends the encoding of r to dst.
func EncodeReply(dst []byte, r Reply) []byte {
	// What an older program would not understand is in a format that it refuses.
	version := byte(formatVersion)
	if r.Move != 0 || r.Detail != "" {
		version = replyVersion
	}
	dst = append(dst, version, byte(r.Refusal))
	dst = putBool(dst, r.Session != SessionState{})
	if r.Session != (SessionState{}) {
		dst = putSession(dst, &r.Session)
	}
	dst = putOwned(dst, r.Owned)
	dst = putAssignments(dst, r.Applied)
	dst = putLen(dst, len(r.Results))
	for i := range r.Results {
		dst = putResult(dst, &r.Results[i])
	}
	if version == replyVersion {
		dst = putText(putUvarint(dst, r.Move), r.Detail)
	}
	return dst
}

// DecodeReply reads what EncodeReply wrote; its error is a *CodecError.
func DecodeReply(b []byte) (Reply, error) {
	r := &reader{what: "reply", b: b}
	version := r.byte("format version")
	if r.err == nil && version != formatVersion && version != replyVersion {
		r.off = 0
		r.fail(fmt.Sprintf("format version %d, this program reads %d and %d", version, formatVersion, replyVersion))
	}
	rep := Reply{Refusal: Refusal(r.byte("refusal"))}
	if r.bool("has session") {
		rep.Session = r.sessionState()
	}
	rep.Owned = r.owned()
	rep.Applied = r.assignments()
	if n := r.count("results", resultBytesMin); n > 0 {
		rep.Results = make([]OpResult, n)
		for i := range rep.Results {
			if r.result(&rep.Results[i]); r.err != nil {
				break
			}
		}
	}
	if version == replyVersion {
		rep.Move, rep.Detail = r.move(), r.text("detail")
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
