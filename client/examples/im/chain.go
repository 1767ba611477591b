package im

import (
	"maps"
	"slices"

	"github.com/seqsvr/seqsvr/client"
)

// Chain is what one device knows of the numbers of one conversation. It does no
// I/O, and is not for concurrent use.
type Chain struct {
	// done: every number up to it is accounted for. above has the accounted ones
	// after it, by number; done+1 is never among them.
	done  int64
	above map[int64]link
	// top is the highest number of which a message was seen; numbers below it were
	// issued, or are in a declared hole. told is the highest that the service told
	// of: as long as no message is there, it may be the end of a hole that is still
	// to be declared.
	top, told int64
	// blanks are accounted numbers without a message, ascending and disjoint.
	blanks []Blank
	// strays are where messages said that a number may be nobody's.
	strays []Span
}

// link is what a message proves of the number before it.
type link uint8

const (
	// linkNone: nothing; it is blank, or its message has a hole before it.
	linkNone link = iota
	// linkPrev: the number before was issued.
	linkPrev
)

// Why a number has no message.
type Why uint8

const (
	// Declared: it is in a declared hole, and nothing shows that it was issued.
	Declared Why = iota + 1
	// Void: it is nobody's, as its sender found out.
	Void
	// Stray: it may be nobody's.
	Stray
	// Missing: it was issued to a message, which is lost.
	Missing
)

func (w Why) String() string {
	return [...]string{Declared: "declared", Void: "void", Stray: "stray", Missing: "missing"}[w]
}

// Blank is numbers without a message.
type Blank struct {
	Span
	Why Why
}

// Done is up to where everything is accounted for.
func (c *Chain) Done() int64 { return c.done }

// Top is the highest number of which a message was seen.
func (c *Chain) Top() int64 { return c.top }

// Tell notes the last number of the conversation, as the service says.
func (c *Chain) Tell(current int64) { c.told = max(c.told, current) }

// Add takes a message, and tells whether it was not known.
func (c *Chain) Add(m Message) (fresh bool) {
	switch _, known := c.above[m.Seq]; {
	case m.Seq <= c.done || known:
		if !c.unblank(m.Seq) {
			return false
		}
		if m.Void {
			c.blank(Span{m.Seq, m.Seq}, Void)
		}
	default:
		c.top = max(c.top, m.Seq)
		if m.Void {
			c.blank(Span{m.Seq, m.Seq}, Void)
		}
	}
	if m.Stray != nil {
		c.strays = append(c.strays, *m.Stray)
	}
	l := linkPrev
	if m.Hole != nil {
		l = linkNone
	}
	c.account(m.Seq, l)
	return !m.Void
}

func (c *Chain) account(n int64, l link) {
	if n <= c.done {
		return
	}
	if c.above == nil {
		c.above = map[int64]link{}
	}
	c.above[n] = l
	c.advance()
}

func (c *Chain) advance() {
	for {
		if _, ok := c.above[c.done+1]; !ok {
			break
		}
		c.done++
		delete(c.above, c.done)
	}
	c.strays = slices.DeleteFunc(c.strays, func(s Span) bool { return s.To <= c.done })
}

// Open are the numbers that are not accounted for: to be read from the store.
// Those above Top may still turn out never to have been issued.
func (c *Chain) Open() (open []Span) {
	from := c.done + 1
	for _, n := range slices.Sorted(maps.Keys(c.above)) {
		if n > from {
			open = append(open, Span{from, n - 1})
		}
		from = n + 1
	}
	if c.told >= from {
		open = append(open, Span{from, c.told})
	}
	return open
}

// Evidence is what Judge needs, gathered in this order.
type Evidence struct {
	// Upto: messages up to it are not on their way any more, and the store was read since.
	Upto int64
	// Top of the chain.
	Top int64
	// Gaps are the declared holes.
	Gaps []client.Gap
}

// Judge decides what open numbers are, and answers what is Missing.
//
// A number above Top is not decided unless it is declared: it may be part of a hole
// that the next message declares.
func (c *Chain) Judge(e Evidence) (missing []Span) {
	for _, open := range c.Open() {
		if open = open.cut(Span{1, e.Upto}); open.Len() < 1 {
			break
		}
		tail := open.From > e.Top
		from := open.From
		for _, g := range e.Gaps {
			hole := open.cut(Span{max(from, g.From), g.To})
			if hole.Len() < 1 {
				continue
			}
			if tail && from < hole.From {
				break
			}
			missing = append(missing, c.issued(Span{from, hole.From - 1})...)
			from = hole.To + 1
			// Inside a hole a message proves that the one before it was issued.
			if l, ok := c.above[from]; ok && l == linkPrev {
				c.fill(Span{hole.From, hole.To - 1}, Declared)
				missing = append(missing, c.issued(Span{hole.To, hole.To})...)
				continue
			}
			c.fill(hole, Declared)
		}
		if !tail {
			missing = append(missing, c.issued(Span{from, open.To})...)
		}
	}
	return missing
}

// issued judges numbers that were surely issued.
func (c *Chain) issued(s Span) (missing []Span) {
	for s.Len() > 0 {
		// The longest part from here on of which all or nothing may be stray.
		part, why := s, Missing
		for _, st := range c.strays {
			if st.has(part.From) {
				why = Stray
				part.To = min(part.To, st.To)
			}
		}
		if why == Missing {
			for _, st := range c.strays {
				if part.has(st.From) {
					part.To = st.From - 1
				}
			}
			missing = append(missing, part)
		}
		c.fill(part, why)
		s.From = part.To + 1
	}
	return missing
}

// fill accounts for the next numbers, which have no message.
func (c *Chain) fill(s Span, why Why) {
	if s.Len() < 1 {
		return
	}
	c.blank(s, why)
	c.done = s.To
	c.advance()
}

func (c *Chain) blank(s Span, why Why) {
	i, _ := slices.BinarySearchFunc(c.blanks, s.From, func(b Blank, n int64) int { return int(min(1, max(-1, b.From-n))) })
	c.blanks = slices.Insert(c.blanks, i, Blank{s, why})
}

// unblank takes a number out of the blanks whose message has come after all. A
// void one stays.
func (c *Chain) unblank(n int64) bool {
	i := slices.IndexFunc(c.blanks, func(b Blank) bool { return b.has(n) && b.Why != Void })
	if i < 0 {
		return false
	}
	b := c.blanks[i]
	var rest []Blank
	if b.From < n {
		rest = append(rest, Blank{Span{b.From, n - 1}, b.Why})
	}
	if n < b.To {
		rest = append(rest, Blank{Span{n + 1, b.To}, b.Why})
	}
	c.blanks = slices.Replace(c.blanks, i, i+1, rest...)
	return true
}

// Blanks are the numbers without a message, ascending.
func (c *Chain) Blanks() []Blank { return slices.Clone(c.blanks) }

// Unread is how many messages came after the number that was read last.
func (c *Chain) Unread(read int64) int64 {
	n := max(0, c.done-read)
	for seq := range c.above {
		if seq > read {
			n++
		}
	}
	for _, b := range c.blanks {
		n -= max(0, b.cut(Span{read + 1, max(c.done, c.top)}).Len())
	}
	return n
}

// Badge is the number of unread messages by the counter alone, for a list of
// conversations whose messages are not read: numbers after the one that was read
// last, without those in declared holes. It counts void and stray numbers too, and
// not the few messages within holes; opening the conversation sets it right.
func Badge(current, read int64, gaps []client.Gap) int64 {
	unread := Span{read + 1, current}
	n := max(0, unread.Len())
	for _, g := range gaps {
		n -= max(0, unread.cut(Span{g.From, g.To}).Len())
	}
	return n
}
