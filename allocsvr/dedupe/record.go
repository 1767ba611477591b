package dedupe

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// ID is a request id: the UUID of a client's message.
type ID [16]byte

// Digest stands for a key and a request id: the first 112 bits of a SHA-256.
type Digest struct {
	A uint64
	B uint64 // 48 bits
}

const lowBits48 = 1<<48 - 1

func digestOf(k ids.Key, id ID) Digest {
	var b [34]byte
	binary.BigEndian.PutUint16(b[0:], uint16(k.Space))
	binary.BigEndian.PutUint64(b[2:], k.Hi)
	binary.BigEndian.PutUint64(b[10:], k.Lo)
	copy(b[18:], id[:])
	sum := sha256.Sum256(b[:])
	return Digest{A: binary.BigEndian.Uint64(sum[0:]), B: binary.BigEndian.Uint64(sum[8:]) >> 16}
}

// Entry is one record: what (key, id) got, and when (Unix ms).
type Entry struct {
	Digest
	First ids.Seq
	Count uint32 // below afterHoleBit
	At    uint64
	// AfterHole: the numbers were the first after a declared hole, which a
	// repetition must declare too, since the first answer may have been lost.
	AfterHole bool
	// Space of its key; 0 in what an older version wrote: not known.
	Space ids.SpaceID
}

// afterHoleBit is AfterHole beside the count, in memory and in an export.
const afterHoleBit = 1 << 31

func countWord(n uint32, afterHole bool) uint32 {
	if afterHole {
		n |= afterHoleBit
	}
	return n
}

func (e Entry) countWord() uint32 { return countWord(e.Count, e.AfterHole) }

// A page of records:
//
//	word 0: [check:32][1:32]   0 = not in use yet
//	word 1: base, Unix ms      word 2: serial, growing through the whole table
//	word 3: the space of its keys; 0: of any
//	records of 4 words:
//	  word 0: A    word 1: [check:16][B:48], 0 = no record, stored last
//	  word 2: first    word 3: [ms since base:32][after a hole:1][count:31]
const (
	headWords   = 4
	entryWords  = 4
	pageEntries = (arena.PageWords - headWords) / entryWords
	deltaMax    = 1<<32 - 1
)

type (
	pageMem  = [arena.PageWords]atomic.Uint64
	entryMem = [entryWords]atomic.Uint64
)

func entryAt(p *pageMem, i int) *entryMem { return (*entryMem)(p[headWords+i*entryWords:]) }

// The check is a multiply-shift hash as in package arena: every single flipped bit moves it.
const (
	mulA     uint64 = 0x9E3779B97F4A7C15
	mulB     uint64 = 0xC2B2AE3D27D4EB4F
	mulFirst uint64 = 0x165667B19E3779F9
	mulMeta  uint64 = 0xD6E8FEB86659FD93
	mulPage  uint64 = 0xA0761D6478BD642F
)

func pageSalt(s ids.Section, base, serial uint64, space ids.SpaceID) uint64 {
	return (uint64(s)*mulPage+base)*mulPage + serial*mulB + uint64(space)*mulMeta
}

func checkEntry(a, b, first, meta, salt uint64) uint64 {
	c := (a*mulA + b*mulB + first*mulFirst + meta*mulMeta + salt*mulPage) >> 48
	if c == 0 {
		c = 1
	}
	return c
}

func checkHead(salt uint64) uint64 { return (salt*mulA)>>32<<32 | 1 }

func writeHead(p *pageMem, s ids.Section, base, serial uint64, space ids.SpaceID) (salt uint64) {
	salt = pageSalt(s, base, serial, space)
	p[1].Store(base)
	p[2].Store(serial)
	p[3].Store(uint64(space))
	p[0].Store(checkHead(salt))
	return salt
}

// readHead reports used false for a page whose head was never finished.
func readHead(p *pageMem, s ids.Section) (base, serial, salt uint64, space ids.SpaceID, used, ok bool) {
	head := p[0].Load()
	if head == 0 {
		return 0, 0, 0, 0, false, true
	}
	base, serial = p[1].Load(), p[2].Load()
	space = ids.SpaceID(p[3].Load())
	salt = pageSalt(s, base, serial, space)
	return base, serial, salt, space, true, head == checkHead(salt) && uint64(space) == p[3].Load()
}

func writeEntry(w *entryMem, d Digest, first ids.Seq, delta, count uint32, salt uint64) {
	meta := uint64(delta)<<32 | uint64(count)
	w[0].Store(d.A)
	w[2].Store(uint64(first))
	w[3].Store(meta)
	w[1].Store(checkEntry(d.A, d.B, uint64(first), meta, salt)<<48 | d.B)
}

func readEntry(w *entryMem, base, salt uint64) (e Entry, used, ok bool) {
	b := w[1].Load()
	if b == 0 {
		return Entry{}, false, true
	}
	meta := w[3].Load()
	e = Entry{
		Digest: Digest{A: w[0].Load(), B: b & lowBits48},
		First:  ids.Seq(w[2].Load()), Count: uint32(meta) &^ afterHoleBit, At: base + meta>>32,
		AfterHole: meta&afterHoleBit != 0,
	}
	good := e.First != 0 && e.First <= ids.MaxSeq && e.Count != 0
	return e, true, good && b>>48 == checkEntry(e.A, e.B, uint64(e.First), meta, salt)
}
