package state

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

const (
	sectionBytesMin = 4
	sessionBytesMin = 10
	storeBytesMin   = 4
	textBytesMin    = 1
	epochBytesMin   = 1
)

// metaVersion is the first byte of a Meta that says anything of Sets. One that
// does not is written in format 1, as it was before there were any: a cluster of
// one Set can go back to an older program until it gets another Set.
const metaVersion = 2

// EncodeMeta appends the encoding of m to dst. Equal states have equal bytes.
func EncodeMeta(dst []byte, m *Meta) []byte {
	if m.asFounded() {
		return putMeta(append(dst, formatVersion), m)
	}
	dst = putBool(putMeta(append(dst, metaVersion), m), m.Genesis.Directory)
	return putSetsMeta(putRanges(dst, m.Genesis.Ranges), m)
}

// asFounded: as format 1 has it, a directory that owns everything and has never
// heard of another Set.
func (m *Meta) asFounded() bool {
	if !m.Genesis.Directory || len(m.Out)+len(m.In) > 0 || m.MovesEnded != 0 || m.Directory == nil {
		return false
	}
	as := Meta{Genesis: m.Genesis.OwningAll()}
	as.foundSets()
	return m.Directory.LastMove == 0 && m.Directory.Map.Version == as.Directory.Map.Version &&
		slices.Equal(m.Ranges, as.Ranges)
}

func putMeta(dst []byte, m *Meta) []byte {
	dst = putGenesis(dst, &m.Genesis)
	dst = putLen(dst, len(m.Sections))
	for i := range m.Sections {
		s := &m.Sections[i]
		dst = putUvarint(putUvarint(dst, s.Owner), s.Epoch)
		dst = putLen(dst, len(s.Unclean))
		for _, e := range s.Unclean {
			dst = putUvarint(dst, e)
		}
		dst = putUvarint(dst, s.Changed)
	}
	dst = putUvarint(dst, m.NextSession)
	dst = putLen(dst, len(m.Sessions))
	for _, id := range slices.Sorted(maps.Keys(m.Sessions)) {
		dst = putSession(dst, m.Sessions[id])
	}
	dst = putLen(dst, len(m.Stores))
	for _, id := range slices.Sorted(maps.Keys(m.Stores)) {
		dst = putStoreNode(dst, m.Stores[id])
	}
	dst = putLen(dst, len(m.Draining))
	for _, node := range slices.Sorted(maps.Keys(m.Draining)) {
		dst = putText(dst, node)
	}
	return putUvarint(dst, m.RouteVersion)
}

// DecodeMeta reads what EncodeMeta wrote; its error is a *CodecError. It
// refuses a Meta whose parts contradict each other.
func DecodeMeta(b []byte) (Meta, error) {
	r := &reader{what: "meta", b: b}
	version := r.byte("format version")
	if r.err == nil && version != formatVersion && version != metaVersion {
		r.off = 0
		r.fail(fmt.Sprintf("format version %d, this program reads %d and %d", version, formatVersion, metaVersion))
	}
	m := Meta{Genesis: r.genesis()}
	m.Sections = items(r, r.count("sections", sectionBytesMin), func() SectionState {
		return SectionState{
			Owner: r.session(), Epoch: r.epoch(),
			Unclean: items(r, r.count("unclean epochs", epochBytesMin), r.epoch),
			Changed: r.uvarint("changed"),
		}
	})
	m.NextSession = r.session()
	m.Sessions = map[ids.SessionID]*SessionState{}
	for range r.count("sessions", sessionBytesMin) {
		s := r.sessionState()
		if m.Sessions[s.ID] != nil {
			r.fail(fmt.Sprintf("session %d twice", s.ID))
		}
		m.Sessions[s.ID] = &s
	}
	m.Stores = map[string]StoreNode{}
	for range r.count("stores", storeBytesMin) {
		n := r.storeNode()
		m.Stores[n.ID] = n
	}
	m.Draining = map[string]bool{}
	for range r.count("draining nodes", textBytesMin) {
		m.Draining[r.text("node")] = true
	}
	m.RouteVersion = r.uvarint("route version")
	if version == metaVersion {
		m.Genesis.Directory, m.Genesis.Ranges = r.bool("directory"), r.ranges()
		r.setsMeta(&m)
	} else if r.err == nil {
		m.Genesis = m.Genesis.OwningAll()
		m.foundSets()
	}
	if err := r.done(); err != nil {
		return Meta{}, err
	}
	if err := Check(&State{Meta: m, Keys: noKeys{}}); err != nil {
		return Meta{}, &CodecError{What: "meta", Offset: len(b), Problem: err.Error()}
	}
	return m, nil
}

// noKeys lets Check look at a Meta alone.
type noKeys struct{ Keys }
