package lease

// Bugs switches rules off, so that fault-injection tests can show that they
// would notice. Never set outside tests.
type Bugs struct {
	// IgnoreLease makes a Holder valid for ever.
	IgnoreLease bool
	// SkipLeaderWait makes a new leader expire whom it has not heard from at once.
	SkipLeaderWait bool
}
