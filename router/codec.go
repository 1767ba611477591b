package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/sets"
)

// The cache file is: magic, format version (2 bytes), length of the payload (4
// bytes), payload, CRC-32C of all before it (4 bytes); integers little-endian,
// in the payload varints.
const (
	cacheMagic    = "seqroute"
	cacheFormat   = 1
	cacheHeader   = len(cacheMagic) + 2 + 4
	cacheChecksum = 4
	// CacheBytesMax bounds a cache file, so that a foreign file is not read whole.
	CacheBytesMax = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode is the table in the form of the cache file.
func Encode(t *Table) []byte {
	payload := appendDelta(nil, t.Whole())
	b := make([]byte, 0, cacheHeader+len(payload)+cacheChecksum)
	b = append(b, cacheMagic...)
	b = binary.LittleEndian.AppendUint16(b, cacheFormat)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Decode reads what Encode wrote and validates it. It never panics, and its
// memory is bounded by the input's size.
func Decode(b []byte) (*Table, error) {
	if len(b) < cacheHeader+cacheChecksum || string(b[:len(cacheMagic)]) != cacheMagic {
		return nil, errors.New("not a route cache")
	}
	if v := binary.LittleEndian.Uint16(b[len(cacheMagic):]); v != cacheFormat {
		return nil, fmt.Errorf("format version %d, this program reads %d", v, cacheFormat)
	}
	n := binary.LittleEndian.Uint32(b[len(cacheMagic)+2:])
	if uint64(n) != uint64(len(b)-cacheHeader-cacheChecksum) {
		return nil, fmt.Errorf("torn: %d bytes of payload announced, %d there", n, len(b)-cacheHeader-cacheChecksum)
	}
	body, sum := b[:len(b)-cacheChecksum], binary.LittleEndian.Uint32(b[len(b)-cacheChecksum:])
	if got := crc32.Checksum(body, castagnoli); got != sum {
		return nil, fmt.Errorf("checksum %08x, the content has %08x", sum, got)
	}
	r := reader{b: body[cacheHeader:]}
	d := r.delta()
	if r.err != nil {
		return nil, r.err
	}
	if len(r.b) > 0 {
		return nil, fmt.Errorf("%d bytes after the end", len(r.b))
	}
	return FromDelta(d)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendDelta(b []byte, d Delta) []byte {
	b = appendString(b, d.Cluster)
	b = appendString(b, d.ClusterID)
	b = binary.AppendUvarint(b, d.MapVersion)
	b = binary.AppendUvarint(b, uint64(len(d.Spaces)))
	for _, s := range d.Spaces {
		b = binary.AppendUvarint(b, uint64(s.ID))
		b = appendString(b, s.Name)
		b = append(b, byte(s.Kind))
		b = binary.AppendUvarint(b, s.MaxUID)
	}
	b = binary.AppendUvarint(b, uint64(len(d.Sets)))
	for _, s := range d.Sets {
		b = appendSet(b, s)
	}
	return b
}

func appendSet(b []byte, s SetDelta) []byte {
	b = appendString(b, s.Name)
	b = binary.AppendUvarint(b, uint64(len(s.Ranges)))
	for _, r := range s.Ranges {
		b = binary.AppendUvarint(b, uint64(r.Space))
		b = binary.AppendUvarint(b, uint64(r.Lo))
		b = binary.AppendUvarint(b, uint64(r.Last))
	}
	b = binary.AppendUvarint(b, s.Version)
	b = binary.AppendUvarint(b, uint64(len(s.Changes)))
	for _, c := range s.Changes {
		b = binary.AppendUvarint(b, uint64(c.Owner))
		b = binary.AppendUvarint(b, uint64(c.Epoch))
	}
	b = binary.AppendUvarint(b, uint64(len(s.Nodes)))
	for _, n := range s.Nodes {
		b = binary.AppendUvarint(b, uint64(n.Session))
		b = appendString(b, n.ID)
		b = appendString(b, n.Addr)
		b = appendString(b, n.RedisAddr)
		b = appendString(b, n.HTTPAddr)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Stores)))
	for _, a := range s.Stores {
		b = appendString(b, a)
	}
	return b
}

// reader consumes b; after the first error it yields zeros and keeps the error.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("malformed %s, %d bytes before the end", what, len(r.b))
	}
	r.b = nil
}

func (r *reader) uint(what string) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(what)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads the length of a list whose entries take at least one byte each.
func (r *reader) count(what string) int {
	n := r.uint(what)
	if n > uint64(len(r.b)) {
		r.fail(what)
		return 0
	}
	return int(n)
}

// list reads a list; it stops at the first error, so that a wrong length costs nothing.
func list[T any](r *reader, what string, one func(i int) T) []T {
	var out []T
	for i := range r.count(what) {
		if out = append(out, one(i)); r.err != nil {
			return nil
		}
	}
	return out
}

func (r *reader) string(what string) string {
	n := r.count(what)
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) spaceID(what string) ids.SpaceID {
	v := r.uint(what)
	if v > 1<<16-1 {
		r.fail(what)
	}
	return ids.SpaceID(v)
}

func (r *reader) delta() Delta {
	return Delta{
		Cluster:    r.string("cluster"),
		ClusterID:  r.string("cluster id"),
		MapVersion: r.uint("map version"),
		Spaces: list(r, "spaces", func(int) ids.Space {
			return ids.Space{
				ID: r.spaceID("space id"), Name: r.string("space name"),
				Kind: ids.Kind(r.byte("space kind")), MaxUID: r.uint("max uid"),
			}
		}),
		Sets: list(r, "sets", func(int) SetDelta { return r.set() }),
	}
}

func (r *reader) byte(what string) byte {
	if len(r.b) == 0 {
		r.fail(what)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) set() SetDelta {
	s := SetDelta{
		Name: r.string("set name"),
		Ranges: list(r, "ranges", func(int) sets.Range {
			return sets.Range{
				Space: r.spaceID("range space"), Lo: ids.Position(r.uint("range start")), Last: ids.Position(r.uint("range end")),
			}
		}),
		Version: r.uint("set version"),
		Changes: list(r, "sections", func(i int) Change {
			return Change{Section: ids.Section(i), Owner: ids.SessionID(r.uint("owner")), Epoch: ids.Epoch(r.uint("epoch"))}
		}),
		Nodes: list(r, "nodes", func(int) Node {
			return Node{
				Session: ids.SessionID(r.uint("session")), ID: r.string("node id"), Addr: r.string("node address"),
				RedisAddr: r.string("redis address"), HTTPAddr: r.string("http address"),
			}
		}),
		Stores: list(r, "stores", func(int) string { return r.string("store address") }),
	}
	s.SectionCount = uint32(len(s.Changes))
	return s
}
