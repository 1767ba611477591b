package sim

import (
	"testing"

	"github.com/seqsvr/seqsvr/chaos/history"
)

func TestWhatACallIsToldMustFitWhatItTook(t *testing.T) {
	const key = "uid/1"
	id := history.RequestID{1}
	call := func(at int64, o history.Op) history.Op {
		o.Key, o.Kind, o.N, o.Call = key, history.Alloc, 1, at
		return o
	}
	ok := func(first int64) history.Op { return history.Op{Outcome: history.OK, First: first} }
	failed, open := history.Op{Outcome: history.Failed}, history.Op{Outcome: history.Unknown}
	of := func(id history.RequestID, o history.Op) history.Op { o.Request = id; return o }
	took := func(at, first int64) issue { return issue{key: key, first: first, n: 1, at: at} }
	tookFor := func(id history.RequestID, at, first int64) issue {
		x := took(at, first)
		x.id = id
		return x
	}
	for _, c := range []struct {
		name   string
		ops    []history.Op
		issues []issue
		untold int
	}{
		{"told them", []history.Op{call(1, ok(7))}, []issue{took(2, 7)}, 0},
		{"told that it may have got some", []history.Op{call(1, open)}, []issue{took(2, 7)}, 0},
		{"told that it got none", []history.Op{call(1, failed)}, []issue{took(2, 7)}, 1},
		{"told others", []history.Op{call(1, ok(8))}, []issue{took(2, 7), took(3, 8)}, 1},
		{"one that is open does not stand for two", []history.Op{call(1, open)}, []issue{took(2, 7), took(3, 8)}, 1},
		{"one that is open does not stand for an earlier one", []history.Op{call(3, open)}, []issue{took(2, 7)}, 1},
		{"nor for one of another size", []history.Op{call(1, open)}, []issue{{key: key, first: 7, n: 2, at: 2}}, 1},
		{"each of two that are open stands for one", []history.Op{call(1, open), call(3, open)}, []issue{took(4, 8), took(2, 7)}, 0},
		{"an id that is answered with others may have been forgotten", []history.Op{call(1, of(id, ok(8)))}, []issue{tookFor(id, 2, 7), tookFor(id, 3, 8)}, 0},
		{"an id that was told that it got none", []history.Op{call(1, of(id, failed))}, []issue{tookFor(id, 2, 7)}, 1},
		{"though it is told of them later", []history.Op{call(1, of(id, failed)), call(3, of(id, ok(7)))}, []issue{tookFor(id, 2, 7)}, 1},
		{"or is open later", []history.Op{call(1, of(id, failed)), call(3, of(id, open))}, []issue{tookFor(id, 2, 7)}, 1},
		{"a call without an id does not stand for one with", []history.Op{call(1, open)}, []issue{tookFor(id, 2, 7)}, 1},
		{"a read took none", []history.Op{{Key: key, Kind: history.Current, N: 1, Call: 1}}, []issue{took(2, 7)}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := untold(c.issues, &history.History{Ops: c.ops}); len(got) != c.untold {
				t.Errorf("untold: %+v, want %d", got, c.untold)
			}
		})
	}
}
