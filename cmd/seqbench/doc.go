// Command seqbench measures how fast numbers are issued, by a cluster or by
// anything that speaks the Redis protocol, and checks each number that it gets.
//
// One program drives all targets with the same callers, keys and clocks, so
// that the ratio of two runs says something. See docs/performance.md.
//
// Verification (verify.go) is for every key and needs 32 bytes a key: every
// number is above all those that were there before its call began, and in the
// end the numbers of a key are those from its base to its highest, each once.
// Keys with a declared hole or a call of unknown outcome may lack numbers; the
// report counts them. Nobody else may use the keys meanwhile.
//
// With --rate, latency is from when a call was due, not from when it could be
// sent: a target that stalls is charged for all the calls that it held up.
package main
