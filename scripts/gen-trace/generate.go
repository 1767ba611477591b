package main

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/testdata"
)

// params of a trace; the defaults are what is committed.
type params struct {
	seed          uint64
	conversations int
	messages      int
	// skew of Zipf's law: the conversation of rank r gets a share of 1/r^skew.
	skew float64
	// groups is the share of conversations with more than two members.
	groups float64
	// retried is the share of messages that are sent again, once to three times.
	retried float64
	day     time.Duration
}

func defaults() params {
	return params{seed: 1, conversations: 2000, messages: 60_000, skew: 1.05, groups: 0.3, retried: 0.05, day: 24 * time.Hour}
}

// generate makes a trace; the same params make the same one.
func generate(p params) *testdata.Trace {
	rng := rand.New(rand.NewPCG(p.seed, 0))
	t := &testdata.Trace{Seed: p.seed, Conversations: conversations(p, rng)}
	for i, n := range sizes(p) {
		t.Sends = append(t.Sends, talk(p, rng, i, n, t.Conversations[i].Members)...)
	}
	number(t)
	t.Sends = append(t.Sends, retries(p, rng, t.Sends)...)
	sortByTime(t.Sends)
	return t
}

// conversations draws names in the manner of chat systems: si_A_B for two
// people, sg_N for a group. Ranks are shuffled over both.
func conversations(p params, rng *rand.Rand) []testdata.Conversation {
	var out []testdata.Conversation
	seen := map[string]bool{}
	for len(out) < p.conversations {
		c := testdata.Conversation{Members: 2}
		if rng.Float64() < p.groups {
			c.Name = fmt.Sprintf("sg_%d", 100_000+rng.IntN(900_000))
			// Most groups are small, a few have hundreds of members.
			c.Members = 3 + int(math.Min(497, 4/math.Pow(rng.Float64(), 0.8)))
		} else {
			a, b := 10_000+rng.IntN(50_000), 10_000+rng.IntN(50_000)
			c.Name = fmt.Sprintf("si_%d_%d", min(a, b), max(a, b))
		}
		if !seen[c.Name] {
			seen[c.Name] = true
			out = append(out, c)
		}
	}
	return out
}

// sizes shares the messages out by Zipf's law, at least one each.
func sizes(p params) []int {
	weight, sum := make([]float64, p.conversations), 0.0
	for i := range weight {
		weight[i] = math.Pow(float64(i+1), -p.skew)
		sum += weight[i]
	}
	out, left := make([]int, p.conversations), p.messages-p.conversations
	given := 0
	for i, w := range weight {
		out[i] = 1 + int(w/sum*float64(left))
		given += out[i]
	}
	out[0] += p.messages - given
	return out
}

// talk spreads n messages of a conversation over the day in bursts: people
// answer each other within seconds, and then fall silent.
func talk(p params, rng *rand.Rand, conversation, n, members int) []testdata.Send {
	var out []testdata.Send
	for n > 0 {
		burst := min(n, 1+int(rng.ExpFloat64()*8))
		n -= burst
		at := start(p, rng)
		for range burst {
			out = append(out, testdata.Send{At: at, Conversation: conversation, Sender: rng.IntN(members)})
			at += time.Duration(rng.ExpFloat64() * float64(3*time.Second))
		}
	}
	return out
}

// start of a burst: twice as likely in the busiest hour as on average, rare at night.
func start(p params, rng *rand.Rand) time.Duration {
	for {
		x := rng.Float64()
		busy := 0.5 + 0.5*math.Sin(2*math.Pi*(x-0.4))
		if rng.Float64() < 0.03+busy {
			return time.Duration(x * float64(p.day))
		}
	}
}

func sortByTime(s []testdata.Send) {
	for i := range s {
		s[i].At = s[i].At.Truncate(time.Millisecond)
	}
	slices.SortStableFunc(s, func(a, b testdata.Send) int { return cmp.Compare(a.At, b.At) })
}

// number gives the messages their numbers, in the order of time.
func number(t *testdata.Trace) {
	sortByTime(t.Sends)
	for i := range t.Sends {
		t.Sends[i].Message = i
		t.Conversations[t.Sends[i].Conversation].Messages++
	}
	t.Messages = len(t.Sends)
}

// retries of clients that saw no answer: some so soon that they race with the
// original, some after a reconnection.
func retries(p params, rng *rand.Rand, sent []testdata.Send) []testdata.Send {
	var out []testdata.Send
	for _, s := range sent {
		if rng.Float64() >= p.retried {
			continue
		}
		for n := 1 + rng.IntN(3); n > 0; n-- {
			s.Retry = true
			s.At += time.Duration(rng.ExpFloat64() * float64(2*time.Second))
			out = append(out, s)
		}
	}
	return out
}
