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

	// ExtendOutsideRanges acquires and raises keys of ranges that are not the
	// Set's own, or frozen.
	ExtendOutsideRanges bool
	// ThawAfterSeal lets the source take a sealed range back by itself.
	ThawAfterSeal bool
	// SealWhileWaiting seals a part that owners have not vacated.
	SealWhileWaiting bool
	// ImportStalePart joins records of an earlier part, or after the activation.
	ImportStalePart bool
	// PreloadIntoOwn joins records that come ahead of their part also into what is served.
	PreloadIntoOwn bool
	// ActivateBeforeCommit believes who says so that a part is committed.
	ActivateBeforeCommit bool
	// OverwriteFloors joins records by taking whichever comes last.
	OverwriteFloors bool
	// KeepLeftovers joins records by their floors, but leaves bound and epoch of
	// what is left from an earlier time.
	KeepLeftovers bool
	// SettleLeftovers declares holes in what is left of ranges that went away.
	SettleLeftovers bool
	// ForgetVacated takes what a session had vacated for lost when it ends.
	ForgetVacated bool
}
