package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestVerificationCatches(t *testing.T) {
	const at = 40 // the call that is bent
	for _, c := range []struct {
		name string
		bend func(f *fake) func(call int, keys []int, got []number)
		// says is in the violation's text; empty: there must be none.
		says   string
		partly int
		errors int64
	}{
		{name: "nothing in a correct target"},
		{
			name: "a duplicate",
			bend: func(*fake) func(int, []int, []number) {
				return func(call int, _ []int, got []number) {
					if call >= at {
						got[0].seq-- // from now on each number comes once more
					}
				}
			},
			says: "duplicate",
		},
		{
			name: "a number out of order",
			bend: func(*fake) func(int, []int, []number) {
				held := map[int]uint64{}
				return func(_ int, keys []int, got []number) {
					// The key's numbers 2 and 5 change places: none is missing, none twice.
					switch k := keys[0]; got[0].seq {
					case 1002:
						held[k], got[0].seq = 1002, 1005
					case 1005:
						got[0].seq = held[k]
					}
				}
			},
			says: "out of order",
		},
		{
			name: "a hole",
			bend: func(f *fake) func(int, []int, []number) {
				return func(call int, keys []int, got []number) {
					if call == at {
						f.skip(keys[0])
						got[0].seq++
					}
				}
			},
			says: "hole",
		},
		{
			name: "no hole that was declared",
			bend: func(f *fake) func(int, []int, []number) {
				return func(call int, keys []int, got []number) {
					if call == at {
						f.skip(keys[0])
						got[0].seq++
						got[0].hole = true
					}
				}
			},
			partly: 1,
		},
		{
			name: "no hole after an unknown outcome",
			bend: func(*fake) func(int, []int, []number) {
				return func(call int, _ []int, got []number) {
					if call == at {
						got[0] = number{err: errFake, unknown: true}
					}
				}
			},
			partly: 1, errors: 1,
		},
		{
			name: "a number lost by a call that says it issued none",
			bend: func(*fake) func(int, []int, []number) {
				return func(call int, _ []int, got []number) {
					if call == at {
						got[0] = number{err: errFake}
					}
				}
			},
			says: "hole", errors: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{start: 1000}
				if c.bend != nil {
					f.bend = c.bend(f)
				}
				r, errs, err := benched(t, f, config{callers: 3, keys: 5, duration: 50 * time.Millisecond})
				if r.Allocations == 0 || r.Errors != c.errors {
					t.Errorf("%d allocations, %d errors, want %d", r.Allocations, r.Errors, c.errors)
				}
				if c.says == "" {
					if err != nil || !r.Verified || r.PartlyVerified != c.partly {
						t.Errorf("%v %s %+v", err, errs, r)
					}
					return
				}
				if err == nil || r.Verified || r.Violations == 0 || !strings.Contains(errs, c.says) {
					t.Errorf("not caught: %v %s %+v", err, errs, r)
				}
			})
		})
	}
}

// A duplicate and a hole leave the count right: only the hashes tell.
func TestVerificationSeesThroughARightCount(t *testing.T) {
	v := newVerifier(&keyset{}, 1)
	v.setBase(0, 10)
	// Calls that all began before any came back, so that order says nothing.
	for _, seq := range []uint64{11, 12, 12, 14} {
		v.after([]int{0}, []uint64{10}, []number{{seq: seq}})
	}
	v.finish()
	if v.count != 1 || !strings.Contains(v.found[0], "a duplicate and a hole") {
		t.Errorf("%d %v", v.count, v.found)
	}
}

func TestWithoutVerificationNothingIsClaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{bend: func(_ int, _ []int, got []number) { got[0].seq = 7 }}
		if r, _, err := benched(t, f, config{callers: 1, keys: 1, duration: 10 * time.Millisecond, noVerify: true}); err != nil || r.Verified {
			t.Errorf("%v %+v", err, r)
		}
	})
}
