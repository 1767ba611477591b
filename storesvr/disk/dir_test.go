package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

var me = Identity{Cluster: "c", Set: "s1", Node: "n1"}

// lived makes a directory as a node leaves it: a founded state with keys, and a log.
func lived(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var logs []*raft.Log
	for i := uint64(1); i <= 300; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: 1, Type: raft.LogCommand,
			Data: state.EncodeCommand(nil, state.SetDraining{Node: strings.Repeat("n", 100)})})
	}
	if err := d.Log.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	m := testMeta()
	for i := range m.Sections {
		m.Sections[i].Epoch = 1
	}
	for i := uint64(1); i <= 300; i++ {
		d.State.Put(uid(i*100), state.Record{Floor: 1, Bound: 2, Epoch: 1})
	}
	d.State.Commit(300, m)
	if err := d.State.Flush(context.Background(), 300, m); err != nil {
		t.Fatal(err)
	}
	if err := d.SaveIdentity("id-1", true); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestALivedDirectoryOpensAgainAndVerifies(t *testing.T) {
	dir := lived(t)
	rep, err := Verify(dir)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Keys != 300 || rep.Applied != 300 || rep.LogFirst != 1 || rep.LogLast != 300 {
		t.Fatalf("%+v", rep)
	}
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if id := d.Identity(); !id.Joined || id.ClusterID != "id-1" {
		t.Fatalf("%+v", id)
	}
	if _, err := Verify(dir); !errors.As(err, new(*InUseError)) {
		t.Fatalf("verify of a running node's directory: %v", err)
	}
	if _, err := OpenDir(dir, me, Options{}); !errors.As(err, new(*InUseError)) {
		t.Fatalf("second open: %v", err)
	}
}

func TestWhatACrashLeftHalfWrittenIsRemoved(t *testing.T) {
	dir := lived(t)
	half := filepath.Join(dir, "snapshots", "2-300-1.tmp")
	whole := filepath.Join(dir, "snapshots", "2-200-1")
	restore := filepath.Join(dir, StateFile+".restore")
	for _, d := range []string{half, whole} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{restore, filepath.Join(half, "state.bin")} {
		if err := os.WriteFile(f, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range []string{half, restore} {
		if _, err := os.Stat(f); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", f, err)
		}
	}
	if _, err := os.Stat(whole); err != nil {
		t.Error(err)
	}
}

func TestDirectoriesOfOthersAndPartsOfOursAreRefused(t *testing.T) {
	edit := func(name string, f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			p := filepath.Join(dir, name)
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p, f(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	empty := func([]byte) []byte { return nil }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	cut := func(b []byte) []byte { return b[:4*os.Getpagesize()] }
	zeroPages := func(b []byte) []byte { // all but the two header pages
		clear(b[2*os.Getpagesize():])
		return b
	}
	noise := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(i * 31)
		}
		return b
	}
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(old), []byte(new)) }
	}
	other := func(f func(*Identity)) Identity { id := me; f(&id); return id }
	keep := func(*testing.T, string) {}
	for name, c := range map[string]struct {
		spoil func(*testing.T, string)
		want  Identity
		as    any
		says  string
	}{
		"another cluster":       {keep, other(func(i *Identity) { i.Cluster = "x" }), new(*RefusedError), `cluster is "c", want "x"`},
		"another set":           {keep, other(func(i *Identity) { i.Set = "x" }), new(*RefusedError), `set is "s1"`},
		"another node":          {keep, other(func(i *Identity) { i.Node = "x" }), new(*RefusedError), `node is "n1"`},
		"another cluster id":    {keep, other(func(i *Identity) { i.ClusterID = "x" }), new(*RefusedError), `cluster id is "id-1"`},
		"newer format":          {edit(IdentityFile, replace(`"format": 1`, `"format": 2, "more": 1`)), me, new(*RefusedError), `format is "2", want "1"`},
		"identity torn":         {edit(IdentityFile, half), me, new(*CorruptError), "not an identity"},
		"identity gone":         {remove(IdentityFile), me, new(*MissingError), "state.db is there"},
		"state gone":            {remove(StateFile), me, new(*MissingError), "run before"},
		"log gone":              {remove(RaftFile), me, new(*MissingError), "run before"},
		"state empty":           {edit(StateFile, empty), me, new(*CorruptError), "it is empty"},
		"log empty":             {edit(RaftFile, empty), me, new(*CorruptError), "it is empty"},
		"state cut":             {edit(StateFile, cut), me, new(*CorruptError), "cut short"},
		"log cut":               {edit(RaftFile, cut), me, new(*CorruptError), "cut short"},
		"state noise":           {edit(StateFile, noise), me, new(*CorruptError), "header"},
		"log noise":             {edit(RaftFile, noise), me, new(*CorruptError), "header"},
		"state pages zeroed":    {edit(StateFile, zeroPages), me, new(*CorruptError), StateFile},
		"log pages zeroed":      {edit(RaftFile, zeroPages), me, new(*CorruptError), RaftFile},
		"state of another":      {edit(StateFile, replace("id-1", "id-2")), me, new(*CorruptError), "meta state"},
		"identity of a new one": {edit(IdentityFile, replace("id-1", "id-2")), me, new(*RefusedError), "cluster id"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lived(t)
			c.spoil(t, dir)
			before := sizes(t, dir)
			d, err := OpenDir(dir, c.want, Options{})
			if err == nil {
				d.Close()
				t.Fatal("opened")
			}
			if !errors.As(err, c.as) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got %T %v\nwant %T saying %q", err, err, c.as, c.says)
			}
			if after := sizes(t, dir); after != before {
				t.Fatalf("the refusal changed the directory: %s → %s", before, after)
			}
		})
	}
}

func sizes(t *testing.T, dir string) string {
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range es {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(e.Name() + ":" + fi.Mode().String() + ":" + string(rune(fi.Size())) + " ")
	}
	return b.String()
}

func TestACrashWhileADirectoryIsMadeIsCompleted(t *testing.T) {
	dir := t.TempDir()
	if err := (Identity{Format: FormatVersion, Cluster: "c", Set: "s1", Node: "n1"}).Save(dir); err != nil {
		t.Fatal(err)
	}
	l, err := OpenRaftLog(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !d.Identity().Formatted || d.Identity().Joined {
		t.Fatalf("%+v", d.Identity())
	}
}

// flip changes one byte wherever pattern is found.
func flip(t *testing.T, path string, pattern []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i, n := 0, 0
	for {
		at := bytes.Index(b[i:], pattern)
		if at < 0 {
			break
		}
		i += at + len(pattern)
		b[i-1] ^= 0x10
		n++
	}
	if n == 0 {
		t.Fatal("pattern not found")
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAFlippedBitInTheLogIsNoticed(t *testing.T) {
	dir := lived(t)
	flip(t, filepath.Join(dir, RaftFile), bytes.Repeat([]byte("n"), 100))
	if _, err := Verify(dir); !errors.As(err, new(*CorruptError)) {
		t.Fatalf("verify: %v", err)
	}
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var l raft.Log
	if err := d.Log.GetLog(150, &l); !errors.As(err, new(*CorruptError)) {
		t.Fatalf("GetLog: %v", err)
	}
	if err := d.Log.GetLog(301, &l); err != raft.ErrLogNotFound {
		t.Fatalf("GetLog past the end: %v", err)
	}
}

func TestAFlippedBitInARecordFailsTheStore(t *testing.T) {
	dir := lived(t)
	k := uid(7700)
	var changes []change
	for _, n := range []uint64{7700, 7800, 7900} {
		changes = append(changes, change{key: uid(n), record: state.Record{Floor: 1, Bound: 2, Epoch: 1}})
	}
	bl, err := new(block).with(changes)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := blockOf(k)
	flip(t, filepath.Join(dir, StateFile), append(id.append(nil), bl.sealed(id.append(nil))...))
	if _, err := Verify(dir); !errors.As(err, new(*CorruptError)) {
		t.Fatalf("verify: %v", err)
	}
	var failed error
	s, err := Open(dir, Options{Failed: func(err error) { failed = err }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, ok := s.Get(uid(8000)); !ok {
		t.Fatal("a good key is gone")
	}
	func() {
		defer func() {
			if err, ok := recover().(error); !ok || !errors.As(err, new(*CorruptError)) {
				t.Fatalf("recovered %v", err)
			}
		}()
		s.Get(k)
		t.Fatal("a damaged record was answered")
	}()
	if !errors.As(failed, new(*CorruptError)) {
		t.Fatalf("failed with %v", failed)
	}
	defer func() {
		if recover() == nil {
			t.Fatal("applying goes on after the failure")
		}
	}()
	s.Commit(301, testMeta())
}

func TestLogEntriesComeBackAsTheyWere(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir, me, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	in := &raft.Log{Index: 1, Term: 2, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")}
	if err := d.Log.StoreLogs([]*raft.Log{in}); err != nil {
		t.Fatal(err)
	}
	if string(in.Extensions) != "ext" {
		t.Fatal("the entry that Raft still sends was changed")
	}
	var out raft.Log
	if err := d.Log.GetLog(1, &out); err != nil {
		t.Fatal(err)
	}
	if string(out.Data) != "data" || string(out.Extensions) != "ext" || out.Term != 2 {
		t.Fatalf("%+v", out)
	}
}
