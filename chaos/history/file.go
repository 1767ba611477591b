package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Version of the file format: JSON lines. The first line is the header, the
// last one says how many lines lie between them.
const Version = 1

// lineBytesMax bounds a line of a history file.
const lineBytesMax = 1 << 20

type header struct {
	History int      `json:"history"`
	Seed    uint64   `json:"seed"`
	Step    int64    `json:"step,omitempty"`
	Skipped []string `json:"skipped,omitempty"`
}

type trailer struct {
	End int `json:"end"`
}

// BadFileError says which line of a history file cannot be used, and why.
type BadFileError struct {
	Line   int
	Reason string
}

func (e *BadFileError) Error() string {
	return fmt.Sprintf("history, line %d: %s", e.Line, e.Reason)
}

// Write writes the history as JSON lines.
func (h *History) Write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(header{History: Version, Seed: h.Seed, Step: h.Step, Skipped: h.Skipped}); err != nil {
		return err
	}
	for i := range h.Ops {
		if err := enc.Encode(&h.Ops[i]); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	for i := range h.Faults {
		if err := enc.Encode(&h.Faults[i]); err != nil {
			return err
		}
	}
	for i := range h.Ledger {
		if err := enc.Encode(&h.Ledger[i]); err != nil {
			return err
		}
	}
	if err := enc.Encode(trailer{End: len(h.Ops) + len(h.Faults) + len(h.Ledger)}); err != nil {
		return err
	}
	return b.Flush()
}

// Save writes the history to a file.
func (h *History) Save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(h.Write(f), f.Close())
}

// Load reads a file written by Save.
func Load(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	h, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// Read reads what Write wrote. It refuses anything else with a *BadFileError.
func Read(r io.Reader) (*History, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 1<<16), lineBytesMax)
	rd := reader{keys: map[string]string{}}
	for sc.Scan() {
		rd.line++
		if reason := rd.take(sc.Bytes()); reason != "" {
			return nil, &BadFileError{rd.line, reason}
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &BadFileError{rd.line + 1, fmt.Sprintf("longer than %d bytes: not a history", lineBytesMax)}
	case err != nil:
		return nil, err
	case rd.h == nil:
		return nil, &BadFileError{1, "the file is empty"}
	case !rd.ended:
		return nil, &BadFileError{rd.line, `the file is cut: its last line should be {"end":…}`}
	}
	return rd.h, nil
}

type reader struct {
	h     *History
	line  int
	ended bool
	// keys interns key texts: a history names few keys many times.
	keys map[string]string
}

// take reads one line and gives the reason if it is bad.
func (r *reader) take(b []byte) string {
	if r.h == nil {
		return r.takeHeader(b)
	}
	if r.ended {
		return "something follows the last line"
	}
	var err error
	switch {
	case bytes.HasPrefix(b, []byte(`{"client":`)):
		var o Op
		if err = strict(b, &o); err == nil {
			err = o.valid()
		}
		o.Key = r.intern(o.Key)
		r.h.Ops = append(r.h.Ops, o)
	case bytes.HasPrefix(b, []byte(`{"fault":`)):
		var f Fault
		if err = strict(b, &f); err == nil && (f.Name == "" || f.Start < 0 || f.End < f.Start || f.Losses < 0) {
			err = errors.New("a fault needs a name, 0 ≤ start ≤ end and losses ≥ 0")
		}
		r.h.Faults = append(r.h.Faults, f)
	case bytes.HasPrefix(b, []byte(`{"gap":`)):
		var g Gap
		if err = strict(b, &g); err == nil && (g.Key == "" || g.From < 1 || g.To < g.From) {
			err = errors.New("a gap needs a key and 1 ≤ from ≤ to")
		}
		g.Key = r.intern(g.Key)
		r.h.Ledger = append(r.h.Ledger, g)
	case bytes.HasPrefix(b, []byte(`{"end":`)):
		var t trailer
		if err = strict(b, &t); err == nil {
			r.ended = true
			if n := r.line - 2; t.End != n {
				err = fmt.Errorf("%d lines are announced, %d are there", t.End, n)
			}
		}
	default:
		return "neither an operation, a fault, a gap nor the end"
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func (r *reader) takeHeader(b []byte) string {
	var hd header
	if err := json.Unmarshal(b, &hd); err != nil || hd.History == 0 {
		return `not a history: the first line should be {"history":1,…}`
	}
	if hd.History != Version {
		return fmt.Sprintf("format version %d: this program reads version %d", hd.History, Version)
	}
	r.h = &History{Seed: hd.Seed, Step: hd.Step, Skipped: hd.Skipped}
	return ""
}

func (r *reader) intern(s string) string {
	if k, ok := r.keys[s]; ok {
		return k
	}
	r.keys[s] = s
	return s
}

func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if d.More() {
		return errors.New("something follows the object")
	}
	return nil
}

// valid refuses what no recorder writes. Wrong *answers* are not refused here:
// they are for the checker to find.
func (o *Op) valid() error {
	switch {
	case o.Kind == 0:
		return errors.New("an operation needs its op")
	case o.Key == "":
		return errors.New("an operation needs a key")
	case o.Call < 0:
		return errors.New("call is before the history began")
	case o.Outcome != Unknown && o.Return < o.Call:
		return fmt.Errorf("return %d is before call %d", o.Return, o.Call)
	case o.Kind == Alloc && o.N == 0:
		return errors.New("an alloc needs n ≥ 1")
	}
	return nil
}
