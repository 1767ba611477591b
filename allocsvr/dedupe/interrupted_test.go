package dedupe

import (
	"testing"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// The process dies when the numbers are the request's own already, just before or
// just after its record is stored, and before cur moved: the next one finishes both.
func TestARequestInterruptedInItsStepIsFinished(t *testing.T) {
	for what, recorded := range map[string]bool{"before the record": false, "after the record": true} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, 0)
			k := uid(256)
			f.want(k, reqID(1), 2, start, 1, false)
			func() {
				defer func() { _ = recover() }()
				defer f.a.Guard().Enter().Exit()
				c, _ := f.a.Find(k)
				o, err := f.table.Begin(1, k, reqID(2), 3, start+5)
				if err != nil {
					t.Fatal(err)
				}
				err = o.Token.noted(start+5, false, func(n *arena.Note) ids.Seq {
					commit := n.Commit
					n.Commit = func(first ids.Seq) {
						if recorded {
							commit(first)
						}
						panic("killed")
					}
					first, _, _ := c.TakeNoted(3, n)
					return first
				})
				t.Fatal("survived:", err)
			}()
			for range 2 {
				f.die()
				f.want(k, reqID(2), 3, start+10, 3, true)
				f.want(k, reqID(1), 2, start+10, 1, true)
			}
			f.want(k, reqID(3), 1, start+10, 6, false)
			if n := f.table.Stats().Entries; n != 3 {
				t.Fatalf("%d records", n)
			}
		})
	}
}
