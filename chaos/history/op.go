package history

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Kind is what a client asked for.
type Kind uint8

const (
	// Alloc asks for N consecutive numbers of a key.
	Alloc Kind = 1
	// Current asks for the last number issued, allocating nothing.
	Current Kind = 2
)

// Outcome is what the client may conclude from what it got.
type Outcome uint8

const (
	// Unknown: no answer, or one that does not say whether the operation took
	// effect. It may take effect at any time after its call. The zero value, so
	// that an operation that nobody completed is unknown.
	Unknown Outcome = 0
	// OK: answered.
	OK Outcome = 1
	// Failed: definitely without effect.
	Failed Outcome = 2
)

// RequestID is the idempotency token of an Alloc; the zero value means none.
type RequestID [16]byte

// IsZero says that the operation had no request id.
func (r RequestID) IsZero() bool { return r == RequestID{} }

func (r RequestID) String() string {
	h := hex.EncodeToString(r[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// MarshalText writes the id as a UUID.
func (r RequestID) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads a UUID.
func (r *RequestID) UnmarshalText(b []byte) error {
	d, err := hex.DecodeString(strings.ReplaceAll(string(b), "-", ""))
	if err != nil || len(d) != len(r) {
		return fmt.Errorf("request id %q is not a UUID", b)
	}
	copy(r[:], d)
	return nil
}

// Op is one operation of one client on one key. Call and Return are stamps in
// nanoseconds since the history began.
type Op struct {
	Client  int     `json:"client"`
	Kind    Kind    `json:"op"`
	Key     string  `json:"key"`
	N       uint32  `json:"n,omitempty"`
	Call    int64   `json:"call"`
	Return  int64   `json:"return,omitempty"`
	Outcome Outcome `json:"outcome"`
	// First and Count of an answered Alloc.
	First int64  `json:"first,omitempty"`
	Count uint32 `json:"count,omitempty"`
	// Value of an answered Current.
	Value int64 `json:"value,omitempty"`
	// HoleFrom and HoleTo (inclusive) of the discontinuity that the answer declared; HoleTo 0 for none.
	HoleFrom int64 `json:"hole_from,omitempty"`
	HoleTo   int64 `json:"hole_to,omitempty"`
	Replayed bool  `json:"replayed,omitempty"`
	// WindowSince is the stamp since when the answering server remembered all
	// request ids; 0 if it did not say. In an answer to be recorded it is
	// Unix nanoseconds.
	WindowSince int64     `json:"window_since,omitempty"`
	Request     RequestID `json:"request,omitzero"`
	// Err is the kind of the error, e.g. "busy"; empty when answered.
	Err string `json:"err,omitempty"`
}

// Last is the last number that an answered Alloc got.
func (o *Op) Last() int64 { return o.First + int64(o.Count) - 1 }

func (o Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client %d %s %s", o.Client, o.Kind, o.Key)
	if o.N > 1 {
		fmt.Fprintf(&b, " n=%d", o.N)
	}
	fmt.Fprintf(&b, " called %d", o.Call)
	switch {
	case o.Outcome == OK && o.Kind == Current:
		fmt.Fprintf(&b, " answered %d: %d", o.Return, o.Value)
	case o.Outcome == OK:
		fmt.Fprintf(&b, " answered %d: %d..%d", o.Return, o.First, o.Last())
	default:
		fmt.Fprintf(&b, " %s %s", o.Outcome, o.Err)
	}
	if o.HoleTo != 0 {
		fmt.Fprintf(&b, " hole %d..%d", o.HoleFrom, o.HoleTo)
	}
	if o.Replayed {
		b.WriteString(" replayed")
	}
	return b.String()
}

// Fault is one thing that was done to the cluster while the clients ran.
type Fault struct {
	Name string `json:"fault"`
	Node string `json:"node,omitempty"`
	// Start and End are stamps: when it was injected, and when it was lifted
	// (equal for an instant such as a kill).
	Start int64 `json:"start"`
	End   int64 `json:"end"`
	// Losses is how many owners' memories it may have cost: 0 for a planned
	// operation or a process crash, 1 for a machine loss or for a pause longer
	// than the lease. Each may lose up to one step per key (G4).
	Losses int `json:"losses,omitempty"`
	// Planned operations must not make a call fail.
	Planned bool `json:"planned,omitempty"`
}

// Gap is a hole of a key's ledger as read after the run.
type Gap struct {
	Key   string `json:"gap"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Cause string `json:"cause,omitempty"`
}

// CauseAdvance is the ledger's cause for a counter that an operator raised:
// such a hole is no loss.
const CauseAdvance = "advance"

// History is a whole run.
type History struct {
	Seed uint64
	// Step is by how much the cluster raises bounds; 0 means the default.
	Step int64
	// Skipped names faults that were asked for but could not be injected here.
	Skipped []string
	Ops     []Op
	Faults  []Fault
	Ledger  []Gap
}

func (k Kind) String() string    { return text(kindText[:], k) }
func (o Outcome) String() string { return text(outcomeText[:], o) }

var (
	kindText    = [...]string{Alloc: "alloc", Current: "current"}
	outcomeText = [...]string{Unknown: "unknown", OK: "ok", Failed: "failed"}
)

func text[T ~uint8](names []string, v T) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("(%d)", uint8(v))
}

func parse[T ~uint8](what string, names []string, b []byte) (T, error) {
	for i, n := range names {
		if n != "" && n == string(b) {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q", what, b)
}

// MarshalText and UnmarshalText write the kind by its name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
func (k *Kind) UnmarshalText(b []byte) (err error) {
	*k, err = parse[Kind]("op", kindText[:], b)
	return err
}

// MarshalText and UnmarshalText write the outcome by its name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }
func (o *Outcome) UnmarshalText(b []byte) (err error) {
	*o, err = parse[Outcome]("outcome", outcomeText[:], b)
	return err
}
