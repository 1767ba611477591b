package arena

import (
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Section is the persisted state of a section; epoch 0: never opened.
func (a *Arena) Section(s ids.Section) (epoch ids.Epoch, closed bool) {
	defer a.guard.Enter().Exit()
	m := a.mem.Load()
	if m == nil || int(s) >= len(m.sections) {
		return 0, false
	}
	return m.sections[s].state()
}

// OpenSection makes a section's keys servable under an epoch higher than all
// before; else *EpochError. Keys of an earlier epoch are forgotten.
func (a *Arena) OpenSection(s ids.Section, epoch ids.Epoch) error {
	defer a.guard.Enter().Exit()
	sec, m, err := a.section(s)
	if err != nil {
		return err
	}
	if epoch > valueMask {
		return fmt.Errorf("section %d: epoch %d is beyond %d", s, epoch, uint64(valueMask))
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	stored, _ := sec.state()
	if epoch <= stored {
		if !a.opts.Bugs.KeepSectionOpenable {
			return &EpochError{Section: s, Stored: stored, Want: epoch}
		}
		sec.list().each(m, func(_ ids.Key, c Cell) bool { c.unclose(); return true })
	} else {
		m.forget(sec)
	}
	sec.set(epoch, false)
	return nil
}

// unclose exists for Bugs.KeepSectionOpenable only.
func (c Cell) unclose() {
	defer c.lock().Unlock()
	if w := c.w[0].Load(); w&flagBit != 0 {
		c.w[0].Store(seal(w&valueMask, false, c.salt))
	}
}

func (a *Arena) section(s ids.Section) (*section, *memory, error) {
	m := a.mem.Load()
	if m == nil {
		return nil, nil, ErrNotReady
	}
	if int(s) >= len(m.sections) {
		return nil, nil, fmt.Errorf("section %d: the arena has %d", s, len(m.sections))
	}
	return m.sections[s], m, nil
}

// CloseSection is one-way within an epoch: after it returned no key can be added.
// The keys are closed one by one: Each and Cell.Close.
func (a *Arena) CloseSection(s ids.Section) {
	defer a.guard.Enter().Exit()
	sec, _, err := a.section(s)
	if err != nil {
		return
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	if epoch, _ := sec.state(); epoch != 0 {
		sec.set(epoch, true)
	}
}

// FreeSection forgets all keys of a section, after its release was acknowledged or
// its epoch is over. The epoch stays noted.
func (a *Arena) FreeSection(s ids.Section) {
	defer a.settle()
	defer a.guard.Enter().Exit()
	sec, m, err := a.section(s)
	if err != nil {
		return
	}
	sec.mu.Lock()
	defer sec.mu.Unlock()
	m.forget(sec)
}

// settle lets freed memory be used again as far as the readers allow. The rest
// follows when memory is next freed or needed.
func (a *Arena) settle() {
	if m := a.mem.Load(); m != nil {
		m.pool.settle()
	}
}

// Find looks a key up: no lock, no allocation. Hold the Guard.
func (a *Arena) Find(k ids.Key) (Cell, bool) {
	m := a.mem.Load()
	if m == nil {
		return Cell{}, false
	}
	return m.find(k)
}

// Seek is Find for a use that will follow soon: it does not read a uid's cell, but
// has the processor bring it nearer, since the memory of many keys is in no cache
// and what comes between Seek and the use costs nothing then. So the cell may turn
// out to be unused, which Take calls closed. Hold the Guard from Seek to the use.
func (a *Arena) Seek(k ids.Key) (Cell, bool) {
	m := a.mem.Load()
	if m == nil {
		return Cell{}, false
	}
	ord, kind, ok := m.space(k.Space)
	if !ok || kind != ids.KindUID {
		return m.find(k)
	}
	w := m.place(ord, k)
	if w == nil {
		return Cell{}, false
	}
	fetchLine(&w[0])
	return m.cell(w, k), true
}

// Ensure finds a key or adds it, with nothing known of it. *FullError when there
// is no room (memory just freed counts only when its readers have left),
// *SectionClosedError when its section is not open. Hold the Guard.
func (a *Arena) Ensure(k ids.Key) (Cell, error) { return a.ensure(k, true) }

// EnsureInPlace is Ensure for those who must leave free pages to others: ErrNoPage
// where the key would need one.
func (a *Arena) EnsureInPlace(k ids.Key) (Cell, error) { return a.ensure(k, false) }

func (a *Arena) ensure(k ids.Key, grow bool) (Cell, error) {
	defer a.guard.Enter().Exit()
	m := a.mem.Load()
	if m == nil {
		return Cell{}, ErrNotReady
	}
	ord, kind, ok := m.space(k.Space)
	if !ok {
		return Cell{}, fmt.Errorf("%w: space %d is unknown to the arena", ids.ErrBadKey, k.Space)
	}
	s := m.sectionOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch, closed := s.state(); epoch == 0 || closed {
		return Cell{}, &SectionClosedError{Section: s.no}
	}
	return m.ensure(s, ord, kind, k, grow)
}

// Free forgets one key, after it was closed, every guard entered before that was
// left, and its hand-back was acknowledged. Cells of it found since are closed.
// Its memory serves other keys once the readers that are inside now have left.
func (a *Arena) Free(k ids.Key) {
	defer a.settle()
	defer a.guard.Enter().Exit()
	m := a.mem.Load()
	if m == nil {
		return
	}
	ord, kind, ok := m.space(k.Space)
	if !ok {
		return
	}
	s := m.sectionOf(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.free(s, ord, kind, k)
}

// Room lets what was freed serve other keys, as far as its readers have left, and
// is how many pages more could hold keys now.
func (a *Arena) Room() int64 {
	m := a.mem.Load()
	if m == nil {
		return 0
	}
	m.settleNames()
	return m.pool.room()
}

// Each calls f with the keys of a section until it returns false, also with keys
// of which nothing is known (Load gives max 0), in the same order in every run. f
// runs under the guard and without a lock: it may call any method, but not wait for
// the guard. It may miss keys added, and see keys freed, since Each began.
func (a *Arena) Each(s ids.Section, f func(k ids.Key, c Cell) bool) {
	defer a.guard.Enter().Exit()
	sec, m, err := a.section(s)
	if err != nil {
		return
	}
	// Pages are listed under the lock and read without it: the guard keeps a page
	// that is freed meanwhile from being used for anything else.
	sec.mu.Lock()
	l := sec.list()
	sec.mu.Unlock()
	l.each(m, f)
}

// SectionKeys is how many keys a section has.
func (a *Arena) SectionKeys(s ids.Section) int64 {
	m := a.mem.Load()
	if m == nil || int(s) >= len(m.sections) {
		return 0
	}
	return m.sections[s].keys.Load()
}
