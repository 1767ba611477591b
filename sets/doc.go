// Package sets has the Set map: which Set owns which positions of each space.
//
// Guarantee: a Map that passed Validate gives every position of every space to
// exactly one Set, or declares it unassigned. At no version does it give a
// position to two Sets, because serving a key from two Sets is the one mistake
// that a fence inside a Set cannot catch.
//
// Ranges are kept as [Lo, Last] with Last inclusive, because the positions of a
// name space fill all 64 bits and an exclusive end of 2^64 fits no integer
// type. The text form is the operator's: LO-HI with HI exclusive.
//
// The Directory is the map with its moves. A move goes in parts, and of each part
// CommitPart and AbortPart exclude each other for ever (parts.go): what the two
// Sets make of that is in storesvr/state, and that no key has two owners is argued there.
//
// The package is pure. It does not decide when a part is committed, and it does
// not store or publish the map.
package sets
