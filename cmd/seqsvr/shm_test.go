package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestArenasOfDirectoriesThatAreGoneAreRemoved(t *testing.T) {
	folder, gone, here := t.TempDir(), filepath.Join(t.TempDir(), "gone"), t.TempDir()
	arenas := map[string]string{}
	for _, dir := range []string{gone, here} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		s := newShm(folder, dir)
		if err := s.begin(dir); err != nil {
			t.Fatal(err)
		}
		arenas[dir] = s.arena("a1")
		if err := os.WriteFile(arenas[dir], nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.end() // as after a stop that could not hand everything back: the arena, and so the note, stay
	}
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	third := newShm(folder, "/third")
	if err := third.begin("/third"); err != nil {
		t.Fatal(err)
	}
	third.end()
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	s := newShm(folder, here)
	want := []string{arenas[here], s.note}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}
