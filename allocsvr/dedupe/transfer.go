package dedupe

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Export is a section's window on its way to the next owner.
type Export struct {
	// Since: all answers given from then on (Unix ms) are among the entries.
	Since   uint64
	Entries []Entry
}

// Used reports whether the section has a window that could be of use to its next
// owner: one that an id was ever looked up in, or that came from its last.
func (t *Table) Used(no ids.Section) bool {
	defer t.arena.Guard().Enter().Exit()
	return t.arena.RecordsSince(no) != 0
}

// NotBefore has the section promise nothing of before ms (Unix): keys came into it
// of which the past is not known here. Call it before they are served.
func (t *Table) NotBefore(no ids.Section, ms uint64) {
	defer t.arena.Guard().Enter().Exit()
	if t.arena.RecordsSince(no) == 0 {
		return // it begins with the first id
	}
	s, err := t.lock(no, ms)
	if err != nil {
		return
	}
	defer s.mu.Unlock()
	if s.since < ms {
		s.since = ms
		t.arena.NoteRecordsSince(no, ms)
	}
}

// Export copies the section's window, without what is too old for any space. It is
// complete when the section was closed before and its calls have ended.
func (t *Table) Export(no ids.Section, now uint64) (Export, error) {
	defer t.arena.Guard().Enter().Exit()
	s, err := t.lock(no, now)
	if err != nil {
		return Export{}, err
	}
	defer s.mu.Unlock()
	e := Export{Since: s.sinceForAll()}
	for _, p := range s.pages {
		if p.newest+t.longest() < now {
			continue
		}
		for i := range p.next {
			if r, used, _ := readEntry(entryAt(p.mem.Words, i), p.base, p.salt); used && r.At+t.longest() >= now {
				r.Space = p.space
				e.Entries = append(e.Entries, r)
			}
		}
	}
	return e, nil
}

// Import adds what the last owner exported. Its Since is taken over if no request
// was begun here before; so import before serving. Requests known already stay as they are.
func (t *Table) Import(no ids.Section, e Export, now uint64) error {
	defer t.arena.Guard().Enter().Exit()
	s, err := t.lock(no, now)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	early := !s.begun && e.Since != 0 && e.Since < s.since
	was := s.since
	if early {
		s.since = e.Since
	}
	s.importing = true
	defer func() { s.importing = false }()
	entries := slices.Clone(e.Entries)
	slices.SortStableFunc(entries, func(a, b Entry) int { return int(int64(a.At) - int64(b.At)) })
	for _, r := range entries {
		if r.At+t.longest() < now || r.First == 0 || r.Count == 0 {
			continue
		}
		if _, ok := s.find(r.Digest); ok {
			continue
		}
		place, err := s.reserveLocked(r.Space, r.At)
		if err != nil {
			s.since = max(s.since, was)
			t.arena.NoteRecordsSince(no, s.sinceForAll())
			return err
		}
		place.write(r.Digest, r.First, r.countWord(), r.At)
		place.p.reserved--
		s.index.put(r.A, placeOf(place.p.ord, place.entry), s.digestA)
	}
	t.arena.NoteRecordsSince(no, s.sinceForAll())
	return nil
}

const (
	exportVersion = 2
	exportHead    = 1 + 8 + 4
	exportEntry   = 8 + 8 + 8 + 4 + 8 + 2
	exportTail    = 4
)

// Append encodes the export.
func (e Export) Append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, exportVersion)
	dst = binary.LittleEndian.AppendUint64(dst, e.Since)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.Entries)))
	for _, r := range e.Entries {
		dst = binary.LittleEndian.AppendUint64(dst, r.A)
		dst = binary.LittleEndian.AppendUint64(dst, r.B)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(r.First))
		dst = binary.LittleEndian.AppendUint32(dst, r.countWord())
		dst = binary.LittleEndian.AppendUint64(dst, r.At)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(r.Space))
	}
	return binary.LittleEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[start:]))
}

// DecodeExport reads what Append wrote, refusing anything else with a *DecodeError.
func DecodeExport(b []byte) (Export, error) {
	if len(b) < exportHead+exportTail {
		return Export{}, &DecodeError{fmt.Sprintf("%d bytes are too few", len(b))}
	}
	if b[0] != exportVersion {
		return Export{}, &DecodeError{fmt.Sprintf("version %d, this program has %d", b[0], exportVersion)}
	}
	body, tail := b[:len(b)-exportTail], b[len(b)-exportTail:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(tail) {
		return Export{}, &DecodeError{"the checksum does not match"}
	}
	e := Export{Since: binary.LittleEndian.Uint64(b[1:])}
	n := int(binary.LittleEndian.Uint32(b[9:]))
	if len(body) != exportHead+n*exportEntry {
		return Export{}, &DecodeError{fmt.Sprintf("%d bytes for %d entries", len(b), n)}
	}
	for p := body[exportHead:]; len(p) > 0; p = p[exportEntry:] {
		r := Entry{
			Digest:    Digest{A: binary.LittleEndian.Uint64(p), B: binary.LittleEndian.Uint64(p[8:])},
			First:     ids.Seq(binary.LittleEndian.Uint64(p[16:])),
			Count:     binary.LittleEndian.Uint32(p[24:]) &^ afterHoleBit,
			At:        binary.LittleEndian.Uint64(p[28:]),
			Space:     ids.SpaceID(binary.LittleEndian.Uint16(p[36:])),
			AfterHole: binary.LittleEndian.Uint32(p[24:])&afterHoleBit != 0,
		}
		if r.B > lowBits48 || r.First == 0 || r.First > ids.MaxSeq || r.Count == 0 || r.At > lowBits48 {
			return Export{}, &DecodeError{fmt.Sprintf("entry %d cannot be", len(e.Entries))}
		}
		e.Entries = append(e.Entries, r)
	}
	return e, nil
}
