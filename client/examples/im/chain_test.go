package im

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/client"
)

// line is a conversation as it was, which no device knows.
type line struct {
	stored []Message
	lost   map[int64]Message // stored, and lost by the store
	nobody map[int64]bool    // issued to an attempt whose answer was lost
	gaps   []client.Gap
	last   int64
}

// drawLine issues numbers as the service does: a machine loss leaves a declared
// hole that begins at or before the last that was issued.
func drawLine(t *rapid.T) *line {
	l := &line{lost: map[int64]Message{}, nobody: map[int64]bool{}}
	next, floor := int64(1), int64(0)
	var hole *client.Hole
	for i := range rapid.IntRange(1, 40).Draw(t, "messages") {
		kind := rapid.SampledFrom([]string{"stored", "stored", "stored", "stored", "void", "lost", "nobody", "nobody, and lost", "machine loss"}).Draw(t, "kind")
		m := Message{Draft: Draft{ID: ID{byte(i), 1}}, Seq: next, Prev: next - 1, Hole: hole}
		switch kind {
		case "machine loss":
			if i == 0 {
				continue
			}
			from := rapid.Int64Range(floor+1, next).Draw(t, "hole from")
			to := next + rapid.Int64Range(0, 20).Draw(t, "hole rest")
			l.gaps = append(l.gaps, client.Gap{From: from, To: to})
			next, floor, hole = to+1, to, &client.Hole{From: from, To: to}
			continue
		case "nobody", "nobody, and lost":
			// Its message has the next number, and says so, unless it is lost too.
			l.nobody[next] = true
			m.Stray = &Span{max(1, next-rapid.Int64Range(0, 3).Draw(t, "stray from")), next}
			m.Seq, m.Prev, m.Hole = next+1, next, nil
			next++
			if kind == "nobody" {
				l.stored = append(l.stored, m)
			} else {
				l.lost[next] = m
			}
		case "void":
			m.Void = true
			l.stored = append(l.stored, m)
		case "lost":
			l.lost[next] = m
		default:
			l.stored = append(l.stored, m)
		}
		next, hole = next+1, nil
	}
	l.last = next - 1
	if len(l.gaps) > 1 && rapid.Bool().Draw(t, "joined") { // the ledger may join adjacent ones
		var joined []client.Gap
		for _, g := range l.gaps {
			if n := len(joined); n > 0 && g.From <= joined[n-1].To+1 {
				joined[n-1].To = g.To
				continue
			}
			joined = append(joined, g)
		}
		l.gaps = joined
	}
	return l
}

func (l *line) declared(n int64) bool {
	return slices.ContainsFunc(l.gaps, func(g client.Gap) bool { return g.From <= n && n <= g.To })
}

func (l *line) has(n int64) bool {
	return slices.ContainsFunc(l.stored, func(m Message) bool { return m.Seq == n })
}

func TestAChainSaysMissingOfExactlyWhatWasLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLine(t)
		var c Chain
		shown := map[int64]int{}
		add := func(ms []Message) {
			for _, m := range ms {
				if c.Add(m) {
					shown[m.Seq]++
				}
			}
		}
		order := rapid.Permutation(l.stored).Draw(t, "order")
		add(order)
		add(order[:rapid.IntRange(0, len(order)).Draw(t, "again")])
		c.Tell(rapid.Int64Range(0, l.last).Draw(t, "told"))
		c.Judge(Evidence{rapid.Int64Range(0, c.Top()).Draw(t, "upto"), c.Top(), l.gaps})
		c.Tell(l.last)
		c.Judge(Evidence{l.last, c.Top(), l.gaps})

		top := c.Top()
		missing := func(n int64) bool {
			return slices.ContainsFunc(c.Blanks(), func(b Blank) bool { return b.Why == Missing && b.has(n) })
		}
		stray := func(n int64) bool {
			return slices.ContainsFunc(l.stored, func(m Message) bool { return m.Stray != nil && m.Stray.has(n) })
		}
		excused := func(n int64) bool {
			for _, m := range l.lost {
				if m.Stray != nil && m.Stray.has(n) {
					return true
				}
			}
			return false
		}
		for n := int64(1); n <= l.last; n++ {
			_, lost := l.lost[n]
			if missing(n) && !lost && !excused(n) {
				t.Fatalf("%d is said to be missing: %+v", n, l)
			}
			// Inside a hole only the message after it shows that it was issued.
			found := n < top && (!l.declared(n) || l.has(n+1) && !slices.ContainsFunc(l.stored, func(m Message) bool { return m.Seq == n+1 && m.Hole != nil }))
			if lost && found && !stray(n) && !missing(n) {
				t.Fatalf("%d was lost, and is not missing: %+v", n, l)
			}
		}
		if c.Done() < top {
			t.Fatalf("complete up to %d only, top is %d, open %v: %+v", c.Done(), top, c.Open(), l)
		}
		for _, m := range l.stored {
			if want := 1; m.Void && shown[m.Seq] != 0 || !m.Void && shown[m.Seq] != want {
				t.Fatalf("message %d was shown %d times", m.Seq, shown[m.Seq])
			}
		}
		read := rapid.Int64Range(0, l.last).Draw(t, "read")
		unread := func() (n int64) {
			for seq := range shown {
				if seq > read {
					n++
				}
			}
			return n
		}
		if got := c.Unread(read); got != unread() {
			t.Fatalf("%d unread after %d, want %d: %+v", got, read, unread(), l)
		}
		// What was lost is found again: it is shown, and missing no more.
		for n, m := range l.lost {
			if add([]Message{m, m}); shown[n] != 1 || missing(n) {
				t.Fatalf("message %d that was found was shown %d times", n, shown[n])
			}
		}
		if got := c.Unread(read); got != unread() {
			t.Fatalf("%d unread after %d at the end, want %d: %+v", got, read, unread(), l)
		}
	})
}

func msg(seq int64) Message {
	return Message{Draft: Draft{ID: ID{byte(seq), 1}}, Seq: seq, Prev: seq - 1}
}

func TestWhatIsAbsentAndWhy(t *testing.T) {
	after := func(m Message, from int64) Message {
		m.Hole = &client.Hole{From: from, To: m.Prev}
		return m
	}
	void := msg(2)
	void.Void = true
	stray := msg(4)
	stray.Stray = &Span{2, 3}
	hole := []client.Gap{{From: 3, To: 100}}
	for _, c := range []struct {
		name   string
		have   []Message
		told   int64
		gaps   []client.Gap
		blanks []Blank
		open   []Span
	}{
		{"nothing", []Message{msg(1), msg(2)}, 2, nil, nil, nil},
		{"a lost message", []Message{msg(1), msg(3)}, 3, nil, []Blank{{Span{2, 2}, Missing}}, nil},
		{"the last message, which nothing follows yet", []Message{msg(1)}, 2, nil, nil, []Span{{2, 2}}},
		{"a number that is nobody's", []Message{msg(1), void, msg(3)}, 3, nil, []Blank{{Span{2, 2}, Void}}, nil},
		{"a number that an attempt may have taken", []Message{msg(1), msg(3), stray}, 4, nil, []Blank{{Span{2, 2}, Stray}}, nil},
		{"a hole", []Message{msg(1), msg(2), after(msg(101), 3)}, 101, hole, []Blank{{Span{3, 100}, Declared}}, nil},
		{"a hole, of which part was issued", []Message{msg(1), msg(2), msg(3), msg(4), after(msg(101), 3)}, 101, hole, []Blank{{Span{5, 100}, Declared}}, nil},
		{"a loss in a hole, which the next shows", []Message{msg(1), msg(2), msg(4), after(msg(101), 3)}, 101, hole, []Blank{{Span{3, 3}, Missing}, {Span{5, 100}, Declared}}, nil},
		{"a loss before a hole", []Message{msg(1), msg(3), after(msg(101), 3)}, 101, hole, []Blank{{Span{2, 2}, Missing}, {Span{4, 100}, Declared}}, nil},
		{"the message that declared the hole", []Message{msg(1), msg(2), msg(102)}, 102, hole, []Blank{{Span{3, 100}, Declared}, {Span{101, 101}, Missing}}, nil},
		{"a hole that nothing follows yet", []Message{msg(1), msg(2)}, 100, hole, []Blank{{Span{3, 100}, Declared}}, nil},
		{"a hole that is not declared yet", []Message{msg(1), msg(2)}, 100, nil, nil, []Span{{3, 100}}},
		{"a loss before a hole that nothing follows yet", []Message{msg(1)}, 100, hole, nil, []Span{{2, 100}}},
	} {
		var chain Chain
		for _, m := range c.have {
			chain.Add(m)
		}
		chain.Tell(c.told)
		chain.Judge(Evidence{c.told, chain.Top(), c.gaps})
		if got := chain.Blanks(); !slices.Equal(got, c.blanks) {
			t.Errorf("%s: blanks %v, want %v", c.name, got, c.blanks)
		}
		if got := chain.Open(); !slices.Equal(got, c.open) {
			t.Errorf("%s: open %v, want %v", c.name, got, c.open)
		}
	}
}

func TestBadgesDoNotCountHoles(t *testing.T) {
	gaps := []client.Gap{{From: 951, To: 1000}, {From: 2001, To: 3000}}
	for _, c := range []struct{ current, read, want int64 }{
		{1003, 900, 53}, {1003, 1000, 3}, {1003, 1003, 0}, {1000, 1003, 0}, {3000, 2000, 0}, {3001, 2500, 1}, {950, 900, 50}, {0, 0, 0},
	} {
		if got := Badge(c.current, c.read, gaps); got != c.want {
			t.Errorf("%d read of %d: badge %d, want %d", c.read, c.current, got, c.want)
		}
	}
}
