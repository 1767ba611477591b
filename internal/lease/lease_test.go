package lease

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	ttl    = 2 * time.Second
	margin = ttl / 10
)

// A history of heartbeats in real time, seen through two clocks whose rates
// differ by up to the margin: the holder must have stopped before the leader
// takes the lease to be over.
func TestHolderStopsBeforeTheLeaderTakesOver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// The holder's clock runs slow relative to the leader's: the dangerous way.
		skew := rapid.Float64Range(1-float64(margin)/float64(ttl)+0.001, 1.1).Draw(t, "holder rate / leader rate")
		leaderRate := rapid.Float64Range(0.9, 1.1).Draw(t, "leader rate")
		offset := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "holder clock offset"))
		leaderClock := func(real time.Duration) time.Duration { return time.Duration(float64(real) * leaderRate) }
		holderClock := func(real time.Duration) time.Duration {
			return offset + time.Duration(float64(real)*leaderRate*skew)
		}
		toReal := func(h time.Duration) time.Duration {
			return time.Duration(float64(h-offset) / (leaderRate * skew))
		}

		book := NewBook(ttl, margin)
		book.Lead(0)
		holder := NewHolder(ttl, margin)
		real := time.Duration(0)
		for number := uint64(1); number <= 20; number++ {
			sent := real
			holder.Sent(number, holderClock(sent))
			received := sent + time.Duration(rapid.Int64Range(0, int64(ttl)).Draw(t, "there"))
			lost := rapid.Bool().Draw(t, "lost")
			if !lost {
				book.Heard(1, 1, leaderClock(received))
				holder.Acked(number)
			}
			real = received + time.Duration(rapid.Int64Range(0, int64(ttl)).Draw(t, "pause"))
			if holder.Deadline() < 0 {
				continue
			}
			ends := toReal(holder.Deadline())
			if over := leaderClock(ends); over > book.Deadline(1)+time.Microsecond {
				t.Fatalf("holder serves until %v on the leader's clock, which takes the lease to be over at %v", over, book.Deadline(1))
			}
		}
	})
}

// A heartbeat acknowledged by the old leader at the last moment before the new
// one started must have run out when the new one expires the session.
func TestNewLeaderWaitsForLeasesOfItsPredecessor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		skew := rapid.Float64Range(0.95, 1.05).Draw(t, "holder rate / leader rate")
		sent := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "sent"))
		led := sent + time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "election"))
		holder := NewHolder(ttl, margin)
		holder.Sent(1, sent)
		holder.Acked(1)
		ends := sent + time.Duration(float64(holder.Deadline()-sent)/skew)

		book := NewBook(ttl, margin)
		live := []Session{{ID: 1, Incarnation: 1}}
		book.Lead(led)
		for now := led; ; now += 10 * time.Millisecond {
			if len(book.Expired(now, live)) == 0 {
				continue
			}
			if now < ends {
				t.Fatalf("expired at %v, the holder serves until %v", now, ends)
			}
			if now > led+ttl+margin+10*time.Millisecond {
				t.Fatalf("expired at %v, later than the wait from %v", now, led)
			}
			return
		}
	})
}

func TestSkippingTheLeaderWaitExpiresAtOnce(t *testing.T) {
	book := NewBook(ttl, margin)
	book.Bugs.SkipLeaderWait = true
	book.Lead(time.Minute)
	if got := book.Expired(time.Minute, []Session{{1, 1}}); len(got) != 1 {
		t.Fatalf("the switch has no effect: expired %v", got)
	}
}

func TestBook(t *testing.T) {
	s1, s1resumed := Session{1, 1}, Session{1, 2}
	tests := []struct {
		name string
		do   func(b *Book)
		at   time.Duration
		live []Session
		want int
	}{
		{"unheard before the wait", func(b *Book) {}, ttl + margin - 1, []Session{s1}, 0},
		{"unheard after the wait", func(b *Book) { b.Expired(0, []Session{s1}) }, ttl + margin, []Session{s1}, 1},
		{"heard within ttl", func(b *Book) { b.Heard(1, 1, 5*time.Second) }, 7*time.Second - 1, []Session{s1}, 0},
		{"heard ttl ago", func(b *Book) { b.Heard(1, 1, 5*time.Second) }, 7 * time.Second, []Session{s1}, 1},
		{"heard early in the leadership still has the wait", func(b *Book) { b.Heard(1, 1, 0) }, ttl + margin - 1, []Session{s1}, 0},
		{"registered late without a heartbeat", func(b *Book) {}, time.Hour, []Session{s1}, 0},
		{"a late sign of the old incarnation is ignored", func(b *Book) {
			if !b.Heard(1, 2, 5*time.Second) || b.Heard(1, 1, 6*time.Second) {
				t.Error("it is not said that the old incarnation is not to be acknowledged")
			}
		}, 7 * time.Second, []Session{s1resumed}, 1},
		{"a resume seen in the state counts as heard", func(b *Book) { b.Heard(1, 1, 5*time.Second) }, 7 * time.Second, []Session{s1resumed}, 0},
		{"forgotten", func(b *Book) { b.Heard(1, 1, 5*time.Second); b.Forget(1) }, 7 * time.Second, nil, 0},
		{"a new leadership forgets", func(b *Book) {
			b.Heard(1, 1, 5*time.Second)
			b.Lead(6 * time.Second)
			b.Expired(6*time.Second, []Session{s1})
		}, 6*time.Second + ttl + margin - 1, []Session{s1}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := NewBook(ttl, margin)
			b.Lead(0)
			tt.do(b)
			if got := b.Expired(tt.at, tt.live); len(got) != tt.want {
				t.Errorf("expired at %v: %v, want %d", tt.at, got, tt.want)
			}
		})
	}
}

func TestBookNextIsTheEarliestDeadline(t *testing.T) {
	b := NewBook(ttl, margin)
	b.Lead(0)
	if _, ok := b.Next(nil); ok {
		t.Error("a deadline without a session")
	}
	b.Heard(1, 1, 9*time.Second)
	b.Heard(2, 1, 8*time.Second)
	if at, ok := b.Next([]Session{{1, 1}, {2, 1}}); !ok || at != 10*time.Second {
		t.Errorf("next %v %v, want 10s", at, ok)
	}
}

func TestHolder(t *testing.T) {
	h := NewHolder(ttl, margin)
	if h.Valid(0) {
		t.Fatal("valid before anything was acknowledged")
	}
	h.Sent(1, 10*time.Second)
	h.Sent(2, 11*time.Second)
	if h.Valid(10 * time.Second) {
		t.Fatal("valid by sending alone")
	}
	h.Acked(7)
	if h.Valid(10 * time.Second) {
		t.Fatal("valid by an acknowledgement of nothing")
	}
	if d := h.Acked(1); d != 10*time.Second+ttl-margin {
		t.Fatalf("deadline %v", d)
	}
	if !h.Valid(10*time.Second+ttl-margin-1) || h.Valid(10*time.Second+ttl-margin) {
		t.Fatal("valid up to another time than the deadline")
	}
	h.Acked(2)
	h.Sent(2, 20*time.Second)
	if d := h.Acked(2); d != 11*time.Second+ttl-margin {
		t.Fatalf("a number used twice renews from its second sending: %v", d)
	}
	h.Sent(3, 12*time.Second)
	h.Sent(4, 13*time.Second)
	h.Acked(4)
	if d := h.Acked(3); d != 13*time.Second+ttl-margin {
		t.Fatalf("a late acknowledgement took the lease back to %v", d)
	}
	h.Sent(5, 14*time.Second)
	h.Revoke()
	h.Acked(5)
	if h.Valid(14 * time.Second) {
		t.Fatal("revoked, but revived by an old acknowledgement")
	}
	h.Bugs.IgnoreLease = true
	if !h.Valid(time.Hour) {
		t.Fatal("the switch has no effect")
	}
}

func TestHolderKeepsFewHeartbeats(t *testing.T) {
	h := NewHolder(ttl, margin)
	for n := uint64(1); n <= 10*sentMax; n++ {
		h.Sent(n, time.Duration(n))
	}
	if len(h.sent) != sentMax {
		t.Fatalf("%d heartbeats kept", len(h.sent))
	}
	if d := h.Acked(10 * sentMax); d != 10*sentMax+ttl-margin {
		t.Fatalf("deadline %v", d)
	}
}
