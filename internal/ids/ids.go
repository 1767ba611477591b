// Package ids has the terms of the system as types, so that a section cannot
// be passed where an epoch is meant. It does no I/O and imports nothing of ours.
package ids

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

type (
	// Seq is a number of a stream. Streams count 1, 2, 3 … MaxSeq; 0 means none yet.
	Seq uint64
	// Epoch is a section's fencing token: it grows by one with each assignment. 0 means never assigned.
	Epoch uint64
	// SessionID names one registered incarnation chain of an AllocSvr. 0 means none.
	SessionID uint64
	// Incarnation counts the processes that have held a session: 1 at registration, plus one with each resume.
	Incarnation uint32
	// BatchSeq numbers the command batches of a session, growing within and across incarnations.
	BatchSeq uint64
	// SpaceID identifies a namespace of keys.
	SpaceID uint16
	// Position is where a key lies in its space: the uid itself, or a hash of the name.
	Position uint64
	// Section is the unit of placement inside a Set.
	Section uint32
)

// MaxSeq is the last number a stream can issue: int64's largest, so that any client language can hold it.
const MaxSeq Seq = 1<<63 - 1

// BlockShift sets how many neighbouring positions share a section: 1<<BlockShift.
const BlockShift = 8

// BlockSize is the number of neighbouring uids in one block, and in one arena page.
const BlockSize = 1 << BlockShift

// NameBytesMax is the longest name accepted, in bytes.
const NameBytesMax = 128

// SectionOf places a position: blocks of BlockSize neighbours striped over the sections.
func SectionOf(p Position, sections uint32) Section {
	return Section((uint64(p) >> BlockShift) % uint64(sections))
}

// Key is the identity of a stream. For a uid, Hi is the uid and Lo is 0; for a
// name, Hi and Lo are the first 128 bits of SHA-256(space ‖ 0 ‖ name). Hi is
// the key's Position in both cases.
type Key struct {
	Space  SpaceID
	Hi, Lo uint64
}

// Position is where the key lies in its space.
func (k Key) Position() Position { return Position(k.Hi) }

// Section places the key among `sections` sections.
func (k Key) Section(sections uint32) Section { return SectionOf(k.Position(), sections) }

func (k Key) String() string {
	if k.Lo == 0 {
		return fmt.Sprintf("%d/%d", k.Space, k.Hi)
	}
	return fmt.Sprintf("%d/%016x%016x", k.Space, k.Hi, k.Lo)
}

// Compare orders keys by space, position, then the rest of the fingerprint.
func (k Key) Compare(o Key) int {
	switch {
	case k.Space != o.Space:
		if k.Space < o.Space {
			return -1
		}
		return 1
	case k.Hi != o.Hi:
		if k.Hi < o.Hi {
			return -1
		}
		return 1
	case k.Lo != o.Lo:
		if k.Lo < o.Lo {
			return -1
		}
		return 1
	}
	return 0
}

// Kind is what a space's keys are.
type Kind uint8

const (
	// KindUID: keys are integers in [0, MaxUID].
	KindUID Kind = 1
	// KindName: keys are UTF-8 strings of 1 to NameBytesMax bytes.
	KindName Kind = 2
)

func (k Kind) String() string {
	switch k {
	case KindUID:
		return "uid"
	case KindName:
		return "name"
	}
	return "kind(" + strconv.Itoa(int(k)) + ")"
}

// ParseKind reads "uid" or "name".
func ParseKind(s string) (Kind, error) {
	switch s {
	case "uid":
		return KindUID, nil
	case "name":
		return KindName, nil
	}
	return 0, fmt.Errorf("space kind %q: want uid or name", s)
}

// Space is a namespace of keys.
type Space struct {
	ID   SpaceID
	Name string
	Kind Kind
	// MaxUID is the largest uid; meaningful for KindUID only.
	MaxUID uint64
}

// DefaultMaxUID is the largest uid of a space that does not say otherwise.
const DefaultMaxUID = 1<<32 - 1

// DefaultSpaces is what a cluster has when its configuration names none.
func DefaultSpaces() []Space {
	return []Space{
		{ID: 1, Name: "uid", Kind: KindUID, MaxUID: DefaultMaxUID},
		{ID: 2, Name: "conv", Kind: KindName},
	}
}

// ErrBadKey is wrapped by every refusal of a key; the wrapping says why.
var ErrBadKey = errors.New("invalid key")

// UID makes a key of a uid space, refusing what is outside it.
func (s Space) UID(uid uint64) (Key, error) {
	if s.Kind != KindUID {
		return Key{}, fmt.Errorf("%w: space %q has names, not uids", ErrBadKey, s.Name)
	}
	if uid > s.MaxUID {
		return Key{}, fmt.Errorf("%w: uid %d is outside [0, %d]", ErrBadKey, uid, s.MaxUID)
	}
	return Key{Space: s.ID, Hi: uid}, nil
}

// NameKey makes a key of a name space, refusing empty, over-long and non-UTF-8 names.
func (s Space) NameKey(name string) (Key, error) { return nameKey(s, name) }

// NameKeyOf is NameKey for a name in a buffer, which it does not keep.
func (s Space) NameKeyOf(name []byte) (Key, error) { return nameKey(s, name) }

func nameKey[T string | []byte](s Space, name T) (Key, error) {
	switch {
	case s.Kind != KindName:
		return Key{}, fmt.Errorf("%w: space %q has uids, not names", ErrBadKey, s.Name)
	case len(name) == 0:
		return Key{}, fmt.Errorf("%w: empty name", ErrBadKey)
	case len(name) > NameBytesMax:
		return Key{}, fmt.Errorf("%w: name of %d bytes, at most %d are allowed", ErrBadKey, len(name), NameBytesMax)
	}
	var buf [256]byte
	b := append(buf[:0], s.Name...)
	b = append(b, 0)
	from := len(b)
	b = append(b, name...)
	if !utf8.Valid(b[from:]) {
		return Key{}, fmt.Errorf("%w: name is not valid UTF-8", ErrBadKey)
	}
	sum := sha256.Sum256(b)
	return Key{
		Space: s.ID,
		Hi:    binary.BigEndian.Uint64(sum[0:8]),
		Lo:    binary.BigEndian.Uint64(sum[8:16]),
	}, nil
}

// Parse makes a key from its text: a decimal uid, or the name itself, by the kind of the space.
func (s Space) Parse(text string) (Key, error) {
	if s.Kind == KindName {
		return s.NameKey(text)
	}
	uid, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return Key{}, fmt.Errorf("%w: uid %q is not an integer in [0, %d]", ErrBadKey, text, s.MaxUID)
	}
	return s.UID(uid)
}
