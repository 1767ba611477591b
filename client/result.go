package client

import "time"

// Request asks for N consecutive numbers of a key.
type Request struct {
	Key Key
	// N ≥ 1.
	N int64
	// RequestID makes the call repeatable; zero for none. See WithRequestID.
	RequestID [16]byte
}

// Result is what one key was given: the numbers First … First+Count-1.
type Result struct {
	Key   Key
	First int64
	Count int64
	// Prev is the number before First: First-1. It was issued, unless
	// Discontinuity says otherwise.
	Prev int64
	// Discontinuity is a hole that ends at Prev; nil in all but the first
	// reply after a loss.
	Discontinuity *Hole
	// Replayed: the numbers are those of an earlier call with this request id.
	Replayed bool
	// Repeated: the client repeated the call after an attempt whose outcome is not
	// known. If the numbers are not Replayed and the window began after the call
	// did, that attempt may have taken numbers that are nobody's now.
	Repeated bool
	// WindowSince is since when the owner remembers request ids; zero without one.
	WindowSince time.Time
	// Err is set in results of AllocMany only, and then the rest is zero but Key.
	Err error
}

// Last is the last number given.
func (r *Result) Last() int64 { return r.First + r.Count - 1 }

// Hole declares that numbers From … To (inclusive) may never have been issued.
type Hole struct{ From, To int64 }

// Reading is the last number issued for a key, 0 for none yet.
type Reading struct {
	Key     Key
	Current int64
	// Err is set in readings of CurrentMany only.
	Err error
}

// Gap is a declared hole in the past of a key: numbers From … To (inclusive)
// may never have been issued.
type Gap struct {
	From, To int64
	// Cause is for people: "machine loss".
	Cause string
}

// Route is where a key is served, as far as the client knows.
type Route struct {
	Set     string
	Section uint32
	Epoch   uint64
	// Owner is the node's name, and Addr its address; both are empty while nobody owns the section.
	Owner, Addr string
	// Version of the Set's routes.
	Version uint64
}
