package state

// Bugs switches single mechanisms off, so that fault-injection tests can show
// that they would notice. Never set outside tests; each switch but the zero
// value makes duplicates or undeclared losses possible.
type Bugs struct {
	// SkipEpochFence accepts ops for sections that the sender no longer owns.
	SkipEpochFence bool
	// SkipIncarnationFence accepts batches of a dead process of the session.
	SkipIncarnationFence bool
	// SkipBatchFence accepts delayed copies of batches, hand-backs among them.
	SkipBatchFence bool
	// ReuseEpoch gives a section to its next owner at the epoch of the last one.
	ReuseEpoch bool
	// IgnoreCleanMark treats every past epoch as lost with its machine.
	IgnoreCleanMark bool
}
