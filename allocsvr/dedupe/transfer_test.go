package dedupe

import (
	"errors"
	"reflect"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
)

func TestTheNextOwnerRemembers(t *testing.T) {
	from, to := newFixture(t, 0), newFixture(t, 0)
	for i := range uint64(500) {
		from.want(uid(0), reqID(i), 1, start+i*minute/10, ids.Seq(i+1), false)
	}
	now := uint64(start + 50*minute)
	e, err := from.table.Export(0, now)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.Entries); n < 200 || n > 201 {
		t.Fatalf("%d entries are exported, of 20 minutes", n)
	}
	for range 2 { // twice is harmless
		if err := to.table.Import(0, e, now); err != nil {
			t.Fatal(err)
		}
	}
	if since := to.table.Since(0, 1, now); since != now-20*minute {
		t.Fatalf("since %d minutes ago", (now-since)/minute)
	}
	for i := range uint64(500) {
		o, err := to.table.Begin(0, uid(0), reqID(i), 1, now)
		if err != nil {
			t.Fatal(err)
		}
		if hit := o.Kind == Hit && o.First == ids.Seq(i+1); hit != (start+i*minute/10 >= now-20*minute) {
			t.Fatalf("request %d: %+v", i, o)
		}
		if o.Token != nil {
			o.Token.Abort()
		}
	}
	to.die()
	to.want(uid(0), reqID(499), 1, now, 500, true)
}

func TestAnImportAfterTheFirstRequestPromisesNothing(t *testing.T) {
	from, to := newFixture(t, 0), newFixture(t, 0)
	from.want(uid(0), reqID(1), 1, start, 1, false)
	e, _ := from.table.Export(0, start+minute)
	to.want(uid(0), reqID(2), 1, start+2*minute, 1, false)
	if err := to.table.Import(0, e, start+3*minute); err != nil {
		t.Fatal(err)
	}
	if since := to.table.Since(0, 1, start+3*minute); since != start+2*minute {
		t.Fatal(since - start)
	}
	to.want(uid(0), reqID(1), 1, start+3*minute, 1, true) // but helps
}

func TestAnImportIntoAFullTableIsHonest(t *testing.T) {
	from, to := newFixture(t, 0), newFixture(t, 2*pageEntries)
	for i := range uint64(5 * pageEntries) {
		from.want(uid(0), reqID(i), 1, start+i, ids.Seq(i+1), false)
	}
	now := uint64(start + minute)
	e, _ := from.table.Export(0, now)
	if err := to.table.Import(0, e, now); err != nil {
		t.Fatal(err)
	}
	since := to.table.Since(0, 1, now)
	to.die()
	if again := to.table.Since(0, 1, now); again != since {
		t.Fatalf("since +%d, after a death +%d", since-start, again-start)
	}
	for i := range uint64(5 * pageEntries) {
		o, err := to.table.Begin(0, uid(0), reqID(i), 1, now)
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind != Hit && start+i >= since {
			t.Fatalf("request %d is forgotten, promised since +%d", i, since-start)
		}
		if o.Token != nil {
			o.Token.Abort()
		}
	}
}

func TestBadExportsAreRefused(t *testing.T) {
	good := Export{Since: start, Entries: []Entry{{Digest: Digest{1, 2}, First: 3, Count: 4, At: start, AfterHole: true}}}.Append(nil)
	for what, b := range map[string][]byte{
		"nothing": nil, "short": good[:10], "cut": good[:len(good)-1],
		"flipped":  append([]byte{exportVersion}, append([]byte{good[1] ^ 1}, good[2:]...)...),
		"version":  append([]byte{9}, good[1:]...),
		"no count": Export{Entries: []Entry{{Digest: Digest{1, 2}, First: 3, At: start}}}.Append(nil),
		"no first": Export{Entries: []Entry{{Digest: Digest{1, 2}, Count: 1, At: start}}}.Append(nil),
	} {
		var de *DecodeError
		if _, err := DecodeExport(b); !errors.As(err, &de) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzDecodeExport(f *testing.F) {
	f.Add(Export{}.Append(nil))
	f.Add(Export{Since: start, Entries: []Entry{{Digest: Digest{1, 2}, First: 3, Count: 4, At: start, AfterHole: true}}}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeExport(b)
		if err != nil {
			return
		}
		again, err := DecodeExport(e.Append(nil))
		if err != nil || !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v, then %+v, %v", e, again, err)
		}
	})
}
