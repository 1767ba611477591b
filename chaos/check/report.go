package check

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Kind of a violation.
type Kind string

const (
	// Duplicate: a number was given to two operations (G1).
	Duplicate Kind = "duplicate"
	// Replay: one request id was answered in two ways (G1).
	Replay Kind = "replay"
	// Reorder: an allocation got a smaller number than one that had returned before it was called (G2).
	Reorder Kind = "reorder"
	// StaleRead: a read gave less than what had been answered before it was called (G2).
	StaleRead Kind = "stale read"
	// FutureRead: a read gave a number that can only have been issued after it, or not at all (G2).
	FutureRead Kind = "read from the future"
	// TornRead: a read gave a number from the middle of one allocation (G2).
	TornRead Kind = "torn read"
	// Undeclared: numbers are missing that no discontinuity and no operation of unknown outcome explains (G3).
	Undeclared Kind = "undeclared hole"
	// Unannounced: the first answer after a declared hole does not say so (G3).
	Unannounced Kind = "unannounced hole"
	// ExcessLoss: more numbers were lost than the faults allow (G4).
	ExcessLoss Kind = "excess loss"
	// Unavailable: a key was not served for longer than allowed, or never again (G5).
	Unavailable Kind = "unavailable"
	// FailedCall: a planned operation made a call fail (G5).
	FailedCall Kind = "failed call"
	// Malformed: an answer that no correct server gives (G7).
	Malformed Kind = "malformed answer"
)

// Guarantee that the kind breaks.
func (k Kind) Guarantee() string {
	switch k {
	case Duplicate, Replay:
		return "G1"
	case Reorder, StaleRead, FutureRead, TornRead:
		return "G2"
	case Undeclared, Unannounced:
		return "G3"
	case ExcessLoss:
		return "G4"
	case Unavailable, FailedCall:
		return "G5"
	}
	return "G7"
}

// Violation is one broken guarantee with the operations that show it.
type Violation struct {
	Guarantee string       `json:"guarantee"`
	Kind      Kind         `json:"kind"`
	Key       string       `json:"key"`
	Detail    string       `json:"detail"`
	Ops       []history.Op `json:"ops,omitempty"`
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, key %s: %s", v.Guarantee, v.Kind, v.Key, v.Detail)
	for _, o := range v.Ops {
		b.WriteString("\n    " + o.String())
	}
	return b.String()
}

// Report is the verdict, in the form that seqchaos prints.
type Report struct {
	Seed       uint64         `json:"seed"`
	Operations int            `json:"operations"`
	Faults     map[string]int `json:"faults"`
	Skipped    []string       `json:"skipped"`
	// Duplicates counts numbers issued twice and request ids answered in two ways.
	Duplicates int `json:"duplicates"`
	// OrderViolations counts pairs out of real-time order, reads included.
	OrderViolations int `json:"order_violations"`
	UndeclaredGaps  int `json:"undeclared_gaps"`
	// DeclaredGaps counts distinct declared holes, NumbersLost what nobody received of them.
	DeclaredGaps     int              `json:"declared_gaps"`
	NumbersLost      int64            `json:"numbers_lost"`
	MaxUnavailableMS map[string]int64 `json:"max_unavailable_ms"`
	OK               bool             `json:"ok"`

	Keys      int `json:"keys"`
	Allocated int `json:"allocated"`
	// Failed and Unknown count operations by outcome.
	Failed  int `json:"failed"`
	Unknown int `json:"unknown"`
	// Excess, Outages and MalformedAnswers count the other violations.
	Excess           int `json:"excess_losses"`
	Outages          int `json:"outages"`
	MalformedAnswers int `json:"malformed_answers"`
	// Unproven counts keys whose missing numbers were accepted without a full search.
	Unproven int `json:"unproven"`
	// Violations holds the first ones found, by key.
	Violations []Violation `json:"violations,omitempty"`
}

// Has says whether a violation of this kind was kept.
func (r *Report) Has(k Kind) bool {
	return slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Kind == k })
}

// Err is nil if the history is good, else an error that shows what is not.
func (r *Report) Err() error {
	if r.OK {
		return nil
	}
	return &ViolationError{r}
}

// ViolationError carries the report of a bad history.
type ViolationError struct{ Report *Report }

func (e *ViolationError) Error() string {
	r := e.Report
	var b strings.Builder
	fmt.Fprintf(&b, "history of %d operations (seed %d) breaks the guarantees: duplicates %d, order %d, undeclared gaps %d, excess losses %d, outages %d, malformed %d",
		r.Operations, r.Seed, r.Duplicates, r.OrderViolations, r.UndeclaredGaps, r.Excess, r.Outages, r.MalformedAnswers)
	for _, v := range r.Violations {
		b.WriteString("\n  " + v.String())
	}
	return b.String()
}

// add counts a violation and keeps it if there is room.
func (r *Report) add(keep int, weight int, v Violation) {
	v.Guarantee = v.Kind.Guarantee()
	switch v.Guarantee {
	case "G1":
		r.Duplicates += weight
	case "G2":
		r.OrderViolations += weight
	case "G3":
		r.UndeclaredGaps += weight
	case "G4":
		r.Excess += weight
	case "G5":
		r.Outages += weight
	default:
		r.MalformedAnswers += weight
	}
	if len(r.Violations) < keep {
		r.Violations = append(r.Violations, v)
	}
}

// WriteJSON writes the report as one object on one line.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
