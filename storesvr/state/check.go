package state

import (
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Check verifies the invariants of the whole state, and those of every key if
// Keys can be iterated (has MapKeys' Each). It is for tests and `verify`.
func Check(s *State) error {
	m := &s.Meta
	if m.Genesis.Sections != uint32(len(m.Sections)) {
		return fmt.Errorf("state: %d sections kept, %d founded", len(m.Sections), m.Genesis.Sections)
	}
	for id, ses := range m.Sessions {
		if ses.ID != id || id == 0 || id > m.NextSession || ses.Incarnation == 0 || ses.Acted > ses.Incarnation || ses.Changed > m.RouteVersion {
			return fmt.Errorf("state: session %d is kept as %+v with the last one given out being %d", id, *ses, m.NextSession)
		}
	}
	for i := range m.Sections {
		if err := checkSection(m, ids.Section(i)); err != nil {
			return err
		}
	}
	if err := checkSets(m); err != nil {
		return err
	}
	each, ok := s.Keys.(interface {
		Each(func(ids.Key, Record) bool)
	})
	if !ok {
		return nil
	}
	var err error
	each.Each(func(k ids.Key, rec Record) bool {
		err = CheckKey(s, k, rec, s.Keys.Gaps(k))
		return err == nil
	})
	return err
}

func checkSection(m *Meta, sec ids.Section) error {
	st := &m.Sections[sec]
	switch {
	case st.Owner != 0 && m.Sessions[st.Owner] == nil:
		return fmt.Errorf("state: section %d is owned by session %d, which does not exist", sec, st.Owner)
	case st.Owner != 0 && st.Epoch == 0:
		return fmt.Errorf("state: section %d is owned at epoch 0", sec)
	case st.Changed > m.RouteVersion:
		return fmt.Errorf("state: section %d changed at %d, after route version %d", sec, st.Changed, m.RouteVersion)
	}
	last := ids.Epoch(0)
	for _, e := range st.Unclean {
		if e <= last || e > st.Epoch || e == st.Epoch && st.Owner != 0 {
			return fmt.Errorf("state: section %d at epoch %d lists unclean epochs %v", sec, st.Epoch, st.Unclean)
		}
		last = e
	}
	return nil
}

// CheckKey verifies the invariants of one key.
func CheckKey(s *State, k ids.Key, rec Record, gaps []Gap) error {
	bad := func(what string) error {
		return fmt.Errorf("state: key %v: %s: record %+v, ledger %+v", k, what, rec, gaps)
	}
	epoch := s.Meta.Sections[k.Section(s.Meta.Genesis.Sections)].Epoch
	switch {
	case rec.Floor > rec.Bound || rec.Bound > ids.MaxSeq:
		return bad("want floor ≤ bound ≤ the last number")
	case rec.Epoch == 0 && rec.Floor != rec.Bound:
		return bad("handed back with numbers at risk")
	case rec.Epoch > epoch:
		return bad(fmt.Sprintf("acquired after the section's epoch %d", epoch))
	case rec.Epoch != 0 && rec.Moved:
		return bad("acquired, but marked as if not since it came here")
	}
	if err := checkLedger(rec, gaps); err != nil {
		return bad(err.Error())
	}
	return nil
}

// checkLedger verifies a ledger and that it fits the record.
func checkLedger(rec Record, gaps []Gap) error {
	if len(gaps) > GapsMax {
		return errors.New("ledger too long")
	}
	last := Gap{}
	for i, g := range gaps {
		switch {
		case g.From == 0 || g.From > g.To || g.From <= last.To:
			return errors.New("ledger out of order")
		case g.From == last.To+1 && g.Cause == last.Cause && !last.Merged:
			return errors.New("holes that touch are listed apart")
		case g.Merged && i > 0:
			return errors.New("a hole that is not the oldest is joined")
		}
		last = g
	}
	if last.To > rec.Floor {
		return errors.New("hole above the floor")
	}
	if atFloor := len(gaps) > 0 && last.To == rec.Floor; atFloor != rec.HoleAtFloor {
		return errors.New("mark of the hole at the floor is wrong")
	}
	return nil
}
