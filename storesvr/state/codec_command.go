package state

import (
	"fmt"
	"math"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// The second byte of an encoded command. Never renumber: old logs have them.
// See codec_sets.go for more of them.
const (
	tagGenesis     = 1
	tagPutStore    = 2
	tagDropStore   = 3
	tagRegister    = 4
	tagResume      = 5
	tagExpire      = 6
	tagLeave       = 7
	tagAssign      = 8
	tagSetDraining = 9
	tagSettle      = 10
	tagAdvance     = 11
	tagBatch       = 12
)

// An op starts with its kind in the low bits, and opFingerprint when its key has one.
const (
	opKindMask    = 0x0f
	opFingerprint = 0x10
)

// The fewest bytes that an item takes, for bounding counts.
const (
	assignmentBytesMin = 2
	keyBytesMin        = 3
	opBytesMin         = 4
	spaceBytesMin      = 4
)

// EncodeCommand appends the encoding of c to dst.
func EncodeCommand(dst []byte, c Command) []byte {
	dst = append(dst, formatVersion)
	switch c := c.(type) {
	case Genesis:
		dst = putGenesis(append(dst, tagSetGenesis), &c)
		return putRanges(putBool(dst, c.Directory), c.Ranges)
	case PutStore:
		return putStoreNode(append(dst, tagPutStore), c.Node)
	case DropStore:
		return putText(append(dst, tagDropStore), c.ID)
	case Register:
		return putTexts(append(dst, tagRegister), c.Node, c.Addr, c.RedisAddr, c.HTTPAddr, c.Version)
	case Resume:
		dst = putUvarint(append(dst, tagResume), c.Session)
		dst = putUvarint(dst, c.From)
		return putTexts(dst, c.Addr, c.RedisAddr, c.HTTPAddr, c.Version)
	case Expire:
		return putUvarint(putUvarint(append(dst, tagExpire), c.Session), c.Incarnation)
	case Leave:
		dst = putUvarint(putUvarint(append(dst, tagLeave), c.Session), c.Incarnation)
		return putBool(dst, c.Done)
	case Assign:
		return putAssignments(append(dst, tagAssign), c.Assignments)
	case SetDraining:
		return putBool(putText(append(dst, tagSetDraining), c.Node), c.Draining)
	case Settle:
		dst = putUvarint(putUvarint(append(dst, tagSettle), c.Section), c.Epoch)
		return putKeys(putBool(dst, c.Done), c.Keys)
	case Advance:
		dst = putKey(putBool(append(dst, tagAdvance), c.Key.Lo != 0), c.Key)
		return putUvarint(dst, c.To)
	case Batch:
		return putBatch(append(dst, tagBatch), &c)
	default:
		return putSetCommand(dst, c)
	}
}

// DecodeCommand reads what EncodeCommand wrote; its error is a *CodecError.
func DecodeCommand(b []byte) (Command, error) {
	r := newReader("command", b)
	c := r.command()
	if err := r.done(); err != nil {
		return nil, err
	}
	return c, nil
}

func (r *reader) command() Command {
	switch tag := r.byte("command kind"); tag {
	case tagGenesis:
		// Of a time when a cluster was one Set.
		return r.genesis().OwningAll()
	case tagSetGenesis:
		g := r.genesis()
		g.Directory, g.Ranges = r.bool("directory"), r.ranges()
		return g
	case tagPutStore:
		return PutStore{Node: r.storeNode()}
	case tagDropStore:
		return DropStore{ID: r.text("store")}
	case tagRegister:
		return Register{
			Node: r.text("node"), Addr: r.text("address"), RedisAddr: r.text("redis address"),
			HTTPAddr: r.text("http address"), Version: r.text("version"),
		}
	case tagResume:
		return Resume{
			Session: r.session(), From: r.incarnation(), Addr: r.text("address"), RedisAddr: r.text("redis address"),
			HTTPAddr: r.text("http address"), Version: r.text("version"),
		}
	case tagExpire:
		return Expire{Session: r.session(), Incarnation: r.incarnation()}
	case tagLeave:
		return Leave{Session: r.session(), Incarnation: r.incarnation(), Done: r.bool("done")}
	case tagAssign:
		return Assign{Assignments: r.assignments()}
	case tagSetDraining:
		return SetDraining{Node: r.text("node"), Draining: r.bool("draining")}
	case tagSettle:
		return Settle{
			Section: r.section(), Epoch: r.epoch(), Done: r.bool("done"),
			Keys: r.keys(),
		}
	case tagAdvance:
		return Advance{Key: r.key(r.bool("fingerprint")), To: r.seq("target")}
	case tagBatch:
		return r.batch()
	default:
		return r.setCommand(tag)
	}
}

func putBatch(dst []byte, c *Batch) []byte {
	dst = putUvarint(dst, c.Session)
	dst = putUvarint(dst, c.Incarnation)
	dst = putUvarint(dst, c.Seq)
	dst = putLen(dst, len(c.Ops))
	for i := range c.Ops {
		dst = putOp(dst, &c.Ops[i])
	}
	return dst
}

func (r *reader) batch() Batch {
	b := Batch{Session: r.session(), Incarnation: r.incarnation(), Seq: ids.BatchSeq(r.uvarint("batch sequence"))}
	n := r.count("ops", opBytesMin)
	if n == 0 {
		return b
	}
	b.Ops = make([]Op, n)
	for i := range b.Ops {
		if r.op(&b.Ops[i]); r.err != nil {
			return Batch{}
		}
	}
	return b
}

func putOp(dst []byte, op *Op) []byte {
	head := byte(op.Kind)
	if op.Key.Lo != 0 && (op.Kind == OpExtend || op.Kind == OpReturn) {
		head |= opFingerprint
	}
	dst = putUvarint(append(dst, head), op.Epoch)
	switch op.Kind {
	case OpExtend:
		dst = putUvarint(putKey(dst, op.Key), op.Cur)
		return putUvarint(dst, op.Step)
	case OpReturn:
		return putUvarint(putKey(dst, op.Key), op.Cur)
	case OpVacate:
		return putPart(dst, op.Move, op.Part)
	default:
		return putUvarint(putUvarint(dst, op.Section), op.Next)
	}
}

func (r *reader) op(op *Op) {
	at := r.off
	head := r.byte("op kind")
	op.Kind = OpKind(head & opKindMask)
	op.Epoch = r.epoch()
	switch {
	case op.Kind == OpExtend && head&^opFingerprint == byte(OpExtend):
		op.Key = r.key(head&opFingerprint != 0)
		op.Cur, op.Step = r.seq("cur"), r.seq("step")
	case op.Kind == OpReturn && head&^opFingerprint == byte(OpReturn):
		op.Key = r.key(head&opFingerprint != 0)
		op.Cur = r.seq("cur")
	case head == byte(OpRelease):
		op.Section, op.Next = r.section(), r.session()
	case head == byte(OpVacate):
		op.Move, op.Part = r.move(), r.part()
	default:
		r.off = at
		r.fail(fmt.Sprintf("unknown op kind %d", head))
	}
}

func putGenesis(dst []byte, g *Genesis) []byte {
	dst = putTexts(dst, g.Cluster, g.ClusterID, g.Set)
	dst = putLen(putUvarint(dst, g.Sections), len(g.Spaces))
	for _, sp := range g.Spaces {
		dst = putText(putUvarint(dst, sp.ID), sp.Name)
		dst = putUvarint(append(dst, byte(sp.Kind)), sp.MaxUID)
	}
	return dst
}

func (r *reader) genesis() Genesis {
	return Genesis{
		Cluster: r.text("cluster"), ClusterID: r.text("cluster id"), Set: r.text("set"),
		Sections: uint32(r.limited("sections", math.MaxUint32)),
		Spaces: items(r, r.count("spaces", spaceBytesMin), func() ids.Space {
			return ids.Space{
				ID: ids.SpaceID(r.limited("space", math.MaxUint16)), Name: r.text("space name"),
				Kind: ids.Kind(r.byte("space kind")), MaxUID: r.uvarint("max uid"),
			}
		}),
	}
}

func putStoreNode(dst []byte, n StoreNode) []byte {
	return putTexts(dst, n.ID, n.RaftAddr, n.RPCAddr, n.HTTPAddr)
}

func (r *reader) storeNode() StoreNode {
	return StoreNode{
		ID: r.text("store"), RaftAddr: r.text("raft address"),
		RPCAddr: r.text("rpc address"), HTTPAddr: r.text("http address"),
	}
}

func putAssignments(dst []byte, as []Assignment) []byte {
	dst = putLen(dst, len(as))
	for _, a := range as {
		dst = putUvarint(putUvarint(dst, a.Section), a.To)
	}
	return dst
}

func (r *reader) assignments() []Assignment {
	return items(r, r.count("assignments", assignmentBytesMin), func() Assignment {
		return Assignment{Section: r.section(), To: r.session()}
	})
}

func putTexts(dst []byte, texts ...string) []byte {
	for _, t := range texts {
		dst = putText(dst, t)
	}
	return dst
}
