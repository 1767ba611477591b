package im

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Memory is a Store in memory.
type Memory struct {
	// Lose, if not nil, chooses messages that Put says to have stored and forgets:
	// what a broken store does.
	Lose func(Message) bool
	// Now is the time; nil is time.Now.
	Now func() time.Time

	mu    sync.Mutex
	convs map[string][]Message // ascending
	ids   map[ID]Message
	begun map[ID]pending
}

type pending struct {
	Begun
	draft Draft
}

var _ Store = (*Memory)(nil)

// NewMemory makes an empty one.
func NewMemory() *Memory {
	return &Memory{convs: map[string][]Message{}, ids: map[ID]Message{}, begun: map[ID]pending{}}
}

// Begin implements Store.
func (s *Memory) Begin(_ context.Context, d Draft) (Begun, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := s.ids[d.ID]; ok {
		return Begun{Stored: &m}, nil
	}
	p, ok := s.begun[d.ID]
	if p.Again = ok; !ok {
		now := time.Now
		if s.Now != nil {
			now = s.Now
		}
		p = pending{Begun: Begun{At: now()}, draft: d}
		if all := s.convs[d.Conv]; len(all) > 0 {
			p.Last = all[len(all)-1].Seq
		}
		s.begun[d.ID] = p
	}
	return p.Begun, nil
}

// Put implements Store.
func (s *Memory) Put(_ context.Context, m Message) (Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, known := s.ids[m.ID]
	if known && stored.Seq == m.Seq {
		return stored, nil
	}
	all := s.convs[m.Conv]
	i, taken := slices.BinarySearchFunc(all, m.Seq, func(m Message, seq int64) int { return cmp.Compare(m.Seq, seq) })
	if taken {
		if all[i].ID != m.ID {
			return Message{}, &TakenError{Conv: m.Conv, Seq: m.Seq, Has: all[i].ID, Got: m.ID}
		}
		return stored, nil // void already
	}
	delete(s.begun, m.ID)
	if known {
		m.Void, m.From, m.Body = true, "", ""
	} else {
		if s.Lose != nil && s.Lose(m) {
			return m, nil
		}
		stored = m
		s.ids[m.ID] = m
	}
	s.convs[m.Conv] = slices.Insert(all, i, m)
	return stored, nil
}

// Range implements Store.
func (s *Memory) Range(_ context.Context, conv string, after int64, limit int) ([]Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.convs[conv]
	i, _ := slices.BinarySearchFunc(all, after+1, func(m Message, seq int64) int { return cmp.Compare(m.Seq, seq) })
	return slices.Clone(all[i:min(len(all), i+limit)]), nil
}

// Pending implements Store.
func (s *Memory) Pending(_ context.Context, conv string) ([]Draft, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Draft
	for _, p := range s.begun {
		if conv == "" || conv == p.draft.Conv {
			all = append(all, p.draft)
		}
	}
	return all, nil
}
