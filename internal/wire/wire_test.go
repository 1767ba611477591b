package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
	"github.com/seqsvr/seqsvr/sets"
	"pgregory.net/rapid"
)

// demo is a table with exact versions: section i changed at version i+1.
func demo(t testing.TB) *router.Table {
	t.Helper()
	r := &router.SetRoutes{
		Name: "s1", Version: 9, Stores: []string{"st:1"},
		Nodes: []router.Node{{Session: 1, ID: "a1", Addr: "h1:1"}, {Session: 2, ID: "a2", Addr: "h2:1", RedisAddr: "r", HTTPAddr: "w"}},
	}
	for i := range 8 {
		r.Sections = append(r.Sections, router.Section{Owner: ids.SessionID(i % 3), Epoch: ids.Epoch(i), Changed: uint64(i + 1)})
	}
	spaces := ids.DefaultSpaces()
	table, err := router.New("demo", "id-1", spaces, sets.Single("s1", spaces), r)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// overTheWire is the message as the other side gets it: in bytes and back.
func overTheWire(t testing.TB, pb *seqpb.RouteTable) *seqpb.RouteTable {
	t.Helper()
	b, err := pb.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := &seqpb.RouteTable{}
	if err := got.Unmarshal(b); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWholeTableCrossesTheWire(t *testing.T) {
	want := demo(t)
	d, err := ParseRoutes(overTheWire(t, Routes(want.Whole())))
	if err != nil {
		t.Fatal(err)
	}
	got, err := router.FromDelta(d)
	if err != nil || !reflect.DeepEqual(got.Whole(), want.Whole()) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestDeltaCrossesTheWire(t *testing.T) {
	table := demo(t)
	for version := range uint64(9) {
		d, err := ParseRoutes(overTheWire(t, Behind(table, "s1", 1, version)))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := table.SinceOf("s1", 1, version)
		if !reflect.DeepEqual(d, want) {
			t.Fatalf("since %d: got\n%+v\nwant\n%+v", version, d, want)
		}
	}
	for _, c := range []struct {
		set            string
		mapV, setV     uint64
		wantNil, spans bool
	}{
		{"s1", 1, 9, true, false},
		{"s1", 5, 12, true, false}, // the caller is ahead
		{"s1", 0, 9, false, true},
		{"other", 1, 0, true, false},
	} {
		pb := Behind(table, c.set, c.mapV, c.setV)
		if (pb == nil) != c.wantNil || pb != nil && (len(pb.Spaces) > 0) != c.spans {
			t.Errorf("%+v: got %+v", c, pb)
		}
	}
}

func TestASetWithUnknownOwnersCrossesTheWire(t *testing.T) {
	spaces := ids.DefaultSpaces()
	want, err := router.New("demo", "id-1", spaces, sets.Single("s1", spaces), &router.SetRoutes{Name: "s1", Stores: []string{"st:1"}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := ParseRoutes(overTheWire(t, Routes(want.Whole())))
	if err != nil {
		t.Fatal(err)
	}
	got, err := router.FromDelta(d)
	if err != nil || !reflect.DeepEqual(got.Whole(), want.Whole()) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestParseRoutesRefusesWhatBreaksTheRules(t *testing.T) {
	long := strings.Repeat("x", textBytesMax+1)
	for name, change := range map[string]func(*seqpb.RouteTable){
		"no cluster id":               func(p *seqpb.RouteTable) { p.ClusterId = "" },
		"long cluster":                func(p *seqpb.RouteTable) { p.Cluster = long },
		"nil space":                   func(p *seqpb.RouteTable) { p.Spaces[0] = nil },
		"space id 0":                  func(p *seqpb.RouteTable) { p.Spaces[0].Id = 0 },
		"space id of 17 bits":         func(p *seqpb.RouteTable) { p.Spaces[0].Id = 1 << 16 },
		"space twice":                 func(p *seqpb.RouteTable) { p.Spaces[1] = p.Spaces[0] },
		"space kind":                  func(p *seqpb.RouteTable) { p.Spaces[0].Kind = "guid" },
		"too many spaces":             func(p *seqpb.RouteTable) { p.Spaces = make([]*seqpb.Space, spacesMax+1) },
		"too many sets":               func(p *seqpb.RouteTable) { p.Sets = make([]*seqpb.SetRoutes, setsMax+1) },
		"nil set":                     func(p *seqpb.RouteTable) { p.Sets[0] = nil },
		"unnamed set":                 func(p *seqpb.RouteTable) { p.Sets[0].Name = "" },
		"long set name":               func(p *seqpb.RouteTable) { p.Sets[0].Name = long },
		"set twice":                   func(p *seqpb.RouteTable) { p.Sets = append(p.Sets, p.Sets[0]) },
		"ranges without spaces":       func(p *seqpb.RouteTable) { p.Spaces = nil },
		"nil range":                   func(p *seqpb.RouteTable) { p.Sets[0].Ranges[0] = nil },
		"reversed range":              func(p *seqpb.RouteTable) { p.Sets[0].Ranges[0].Lo = 1 << 40 },
		"range of space 0":            func(p *seqpb.RouteTable) { p.Sets[0].Ranges[0].Space = 0 },
		"too many ranges":             func(p *seqpb.RouteTable) { p.Sets[0].Ranges = make([]*seqpb.Range, rangesMax+1) },
		"owners without version":      func(p *seqpb.RouteTable) { p.Sets[0].Version = 0 },
		"no sections":                 func(p *seqpb.RouteTable) { p.Sets[0].Sections = 0 },
		"too many sections":           func(p *seqpb.RouteTable) { p.Sets[0].Sections = router.SectionsMax + 1 },
		"fewer epochs than owners":    func(p *seqpb.RouteTable) { p.Sets[0].Epoch = p.Sets[0].Epoch[:7] },
		"fewer owners than sections":  func(p *seqpb.RouteTable) { p.Sets[0].Owner, p.Sets[0].Epoch = p.Sets[0].Owner[:7], p.Sets[0].Epoch[:7] },
		"sections listed in a whole":  func(p *seqpb.RouteTable) { p.Sets[0].Section = make([]uint32, 8) },
		"delta without section list":  func(p *seqpb.RouteTable) { p.Sets[0].Since = 3 },
		"delta that goes nowhere":     func(p *seqpb.RouteTable) { p.Sets[0].Since, p.Sets[0].Section = 9, make([]uint32, 8) },
		"delta of a section past end": func(p *seqpb.RouteTable) { p.Sets[0].Since, p.Sets[0].Section = 3, []uint32{0, 1, 2, 3, 4, 5, 6, 8} },
		"nil node":                    func(p *seqpb.RouteTable) { p.Sets[0].Nodes[0] = nil },
		"node without session":        func(p *seqpb.RouteTable) { p.Sets[0].Nodes[0].Session = 0 },
		"node without address":        func(p *seqpb.RouteTable) { p.Sets[0].Nodes[0].Addr = "" },
		"node with a long address":    func(p *seqpb.RouteTable) { p.Sets[0].Nodes[0].Addr = long },
		"too many nodes":              func(p *seqpb.RouteTable) { p.Sets[0].Nodes = make([]*seqpb.AllocNode, nodesMax+1) },
		"too many stores":             func(p *seqpb.RouteTable) { p.Sets[0].Stores = make([]string, storesMax+1) },
		"long store address":          func(p *seqpb.RouteTable) { p.Sets[0].Stores[0] = long },
	} {
		t.Run(name, func(t *testing.T) {
			pb := Routes(demo(t).Whole())
			if _, err := ParseRoutes(pb); err != nil {
				t.Fatal(err)
			}
			change(pb)
			var e *MalformedError
			if _, err := ParseRoutes(pb); !errors.As(err, &e) {
				t.Fatalf("got %v, want a MalformedError", err)
			}
			if CodeOf(e) != seqpb.Code_CODE_INVALID_ARGUMENT {
				t.Fatalf("code %v", CodeOf(e))
			}
		})
	}
	if _, err := ParseRoutes(nil); err == nil {
		t.Fatal("nil was read")
	}
}

func TestAnOwnerThatIsNoNodeIsRefusedByTheTable(t *testing.T) {
	table := demo(t)
	pb := Behind(table, "s1", 1, 5)
	pb.Sets[0].Owner[0] = 77
	d, err := ParseRoutes(pb)
	if err != nil {
		t.Fatal(err)
	}
	older := *table.Sets[0]
	older.Version = 5
	older.Sections = append([]router.Section(nil), older.Sections...)
	for i := range older.Sections {
		older.Sections[i].Changed = min(older.Sections[i].Changed, 5)
	}
	held, err := router.New("demo", "id-1", table.Spaces, table.Map, &older)
	if err != nil {
		t.Fatal(err)
	}
	var e *router.InvalidError
	if _, err := held.Merge(d); !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
}

func TestGapsCrossTheWire(t *testing.T) {
	want := []Gap{{From: 58, To: 10000, Cause: "machine loss"}, {From: 20001, To: 20001}}
	got, err := ParseGaps(Gaps(want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	for name, bad := range map[string][]*seqpb.Gap{
		"nil":        {nil},
		"reversed":   {{From: 5, To: 4}},
		"from 0":     {{From: 0, To: 4}},
		"past int64": {{From: 1, To: 1 << 63}},
		"unsorted":   {{From: 5, To: 6}, {From: 1, To: 2}},
		"overlap":    {{From: 5, To: 6}, {From: 6, To: 7}},
		"too many":   make([]*seqpb.Gap, gapsMax+1),
	} {
		var e *MalformedError
		if _, err := ParseGaps(bad); !errors.As(err, &e) {
			t.Errorf("%s: got %v, want a MalformedError", name, err)
		}
	}
}

func TestErrorsSayTheirCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want seqpb.Code
	}{
		{errors.New("connection reset"), seqpb.Code_CODE_UNKNOWN_RESULT},
		{&NotSent{Err: errors.New("refused")}, seqpb.Code_CODE_UNAVAILABLE},
		{fmt.Errorf("calling: %w", Refusef(seqpb.Code_CODE_BUSY, "queue of %d is full", 5)), seqpb.Code_CODE_BUSY},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
	if s := CodeText(seqpb.Code_CODE_NOT_OWNER); s != "not owner" {
		t.Errorf("%q", s)
	}
}

// Whatever a message holds, reading it and merging it neither panics nor makes an invalid table.
func TestRandomMessagesAreReadOrRefused(t *testing.T) {
	small := rapid.Uint64Range(0, 12)
	table := demo(t)
	rapid.Check(t, func(t *rapid.T) {
		s := &seqpb.SetRoutes{
			Name:     rapid.SampledFrom([]string{"s1", "s2", ""}).Draw(t, "name"),
			Version:  small.Draw(t, "version"),
			Since:    small.Draw(t, "since"),
			Sections: uint32(small.Draw(t, "sections")),
			Owner:    rapid.SliceOfN(rapid.Uint64Range(0, 3), 0, 9).Draw(t, "owner"),
			Epoch:    rapid.SliceOfN(small, 0, 9).Draw(t, "epoch"),
			Section:  rapid.SliceOfN(rapid.Uint32Range(0, 9), 0, 9).Draw(t, "section"),
			Nodes:    []*seqpb.AllocNode{{Session: 1, Addr: "a"}, {Session: small.Draw(t, "session"), Addr: "b"}},
		}
		pb := &seqpb.RouteTable{Cluster: "demo", ClusterId: "id-1", MapVersion: small.Draw(t, "map"), Sets: []*seqpb.SetRoutes{s}}
		if rapid.Bool().Draw(t, "with map") {
			pb.Spaces = Spaces(ids.DefaultSpaces())
			s.Ranges = []*seqpb.Range{{Space: 1, Last: small.Draw(t, "last")}}
		}
		d, err := ParseRoutes(pb)
		if err != nil {
			return
		}
		for _, held := range []*router.Table{{}, table} {
			next, err := held.Merge(d)
			if err != nil {
				continue
			}
			if _, err := router.New(next.Cluster, next.ClusterID, next.Spaces, next.Map, next.Sets...); err != nil {
				t.Fatalf("merged into an invalid table: %v", err)
			}
		}
	})
}
