package raise

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestAdaptiveStepsStayWithinTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := ids.Seq(rapid.Uint64Range(1, 1000).Draw(t, "min"))
		s := Steps{
			Adaptive: true, Min: least, Max: least + ids.Seq(rapid.Uint64Range(0, 1<<30).Draw(t, "more")),
			Target: time.Duration(rapid.Int64Range(int64(TargetMin), int64(TargetMax)).Draw(t, "target")), Keys: 8,
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		p := NewPolicy(s)
		now, cur := time.Now(), ids.Seq(0)
		for range rapid.IntRange(1, 30).Draw(t, "raises") {
			k := ids.Key{Space: 1, Hi: rapid.Uint64Range(0, 20).Draw(t, "key")}
			now = now.Add(time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "elapsed")))
			cur += ids.Seq(rapid.Uint64Range(0, 1<<40).Draw(t, "used"))
			last := p.Last(k)
			step := p.Step(k, cur, now)
			if step < s.Least() || step > s.Largest() || step > last*adaptiveChange {
				t.Fatalf("a step of %d after %d, outside [%d, %d]", step, last, s.Min, s.Max)
			}
			if again := p.Step(k, cur, now); again != step {
				t.Fatalf("asked twice: %d, then %d", step, again)
			}
			p.Granted(k, cur, step, now)
			if got := p.Last(k); got != step {
				t.Fatalf("granted %d, known as %d", step, got)
			}
		}
	})
}

// At a steady rate, a step comes to last about the target.
func TestAStepComesToLastTheTarget(t *testing.T) {
	for _, perSecond := range []float64{1, 50, 5000, 100_000} {
		p := NewPolicy(Steps{Adaptive: true, Min: 10, Max: 1_000_000, Target: 10 * time.Second})
		k, now, cur := ids.Key{Space: 1, Hi: 7}, time.Now(), ids.Seq(0)
		var step ids.Seq
		for range 20 {
			step = p.Step(k, cur, now)
			p.Granted(k, cur, step, now)
			used := max(step/2, 1)
			cur += used
			now = now.Add(time.Duration(float64(used) / perSecond * float64(time.Second)))
		}
		want := min(max(perSecond*10, 10), 1_000_000)
		if got := float64(step); got < want*0.9 || got > want*1.1 {
			t.Errorf("%v a second: a step of %v, want %v", perSecond, got, want)
		}
	}
}

func TestAKeyThatFallsSilentComesDownToTheLeastStep(t *testing.T) {
	s := Steps{Adaptive: true, Min: 10, Max: 10_000, Target: time.Minute}
	p := NewPolicy(s)
	k, now, cur := ids.Key{Space: 1, Hi: 7}, time.Now(), ids.Seq(1)
	p.Granted(k, cur, s.Max, now)
	for range 6 {
		now, cur = now.Add(time.Hour), cur+1
		p.Granted(k, cur, p.Step(k, cur, now), now)
	}
	if got := p.Last(k); got != s.Min {
		t.Errorf("a step of %d for one number an hour", got)
	}
	if got := p.Step(k, 0, now); got != s.Min {
		t.Errorf("a step of %d for a key that is not held", got)
	}
}

// Many keys that are raised once do not take the place of one that is raised all the time.
func TestColdKeysDoNotDisplaceAHotOne(t *testing.T) {
	s := Steps{Adaptive: true, Min: 10, Max: 10_000, Target: time.Minute, Keys: 64}
	p := NewPolicy(s)
	hot, now := ids.Key{Space: 1, Hi: 1 << 40}, time.Now()
	p.Granted(hot, 1, 5000, now)
	for i := range uint64(100_000) {
		p.Granted(ids.Key{Space: 1, Hi: i}, 0, s.Min, now.Add(time.Second))
	}
	if got := p.Last(hot); got != 5000 {
		t.Errorf("its step is known as %d", got)
	}
	// But for ever it does not stay.
	for i := range uint64(100_000) {
		p.Granted(ids.Key{Space: 1, Hi: i}, 0, s.Min, now.Add(time.Hour))
	}
	if got := p.Last(hot); got != s.Min {
		t.Errorf("after an hour without a raise its step is still known as %d", got)
	}
}

func TestARaiseIsAskedForOnceAtHalfAndAgainWhenItDidNotCome(t *testing.T) {
	for _, c := range []struct {
		steps Steps
		step  ids.Seq
		at    []ids.Seq // what is left when a raise is asked for, numbers going one by one
	}{
		{Fixed(100), 100, []ids.Seq{49, 31, 15, 7, 3, 1, 0}},
		{Steps{Adaptive: true, Min: 10, Max: 10_000, Target: time.Minute}, 100, []ids.Seq{31, 15, 7, 3, 1, 0}},
		{Steps{Adaptive: true, Min: 10, Max: 10_000, Target: time.Minute}, 10_000, []ids.Seq{4999, 4095, 2047, 1023, 511, 255, 127, 63, 31, 15, 7, 3, 1, 0}},
	} {
		p, k := NewPolicy(c.steps), ids.Key{Space: 1, Hi: 7}
		p.Granted(k, 1, c.step, time.Now())
		var at []ids.Seq
		for left := c.step - 1; ; left-- {
			if RunsLow(p, k, left, 1, c.steps.Largest()/2) {
				at = append(at, left)
			}
			if left == 0 {
				break
			}
		}
		if len(at) != len(c.at) {
			t.Errorf("%+v, step %d: asked at %v, want %v", c.steps, c.step, at, c.at)
			continue
		}
		for i := range at {
			if at[i] != c.at[i] {
				t.Errorf("%+v, step %d: asked at %v, want %v", c.steps, c.step, at, c.at)
				break
			}
		}
	}
}

func TestWrongStepsAreRefused(t *testing.T) {
	for _, s := range []Steps{
		{}, Fixed(ids.MaxSeq + 1),
		{Adaptive: true, Max: 10, Target: time.Minute},
		{Adaptive: true, Min: 11, Max: 10, Target: time.Minute},
		{Adaptive: true, Min: 1, Max: 1 << 31, Target: time.Minute},
		{Adaptive: true, Min: 1, Max: 10},
	} {
		if s.Check() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

func BenchmarkAdaptiveLast(b *testing.B) {
	p := NewPolicy(Steps{Adaptive: true, Min: 10, Max: 10_000, Target: time.Minute})
	now := time.Now()
	for i := range uint64(100_000) {
		p.Granted(ids.Key{Space: 1, Hi: i}, 1, 100, now)
	}
	i := uint64(0)
	for b.Loop() {
		i++
		p.Last(ids.Key{Space: 1, Hi: i % 100_000})
	}
}
