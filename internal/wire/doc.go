// Package wire turns the messages of proto/ into the types of router and ids,
// and back.
//
// What comes from the network is not trusted: counts are bounded, parallel
// arrays must be of equal length, and a message that breaks a rule is refused
// whole with a MalformedError. What only makes sense against the held table
// (versions, owners that are no nodes) is for router.Table.Merge to refuse.
//
// It also has the errors by which a whole request fails, on either side of a
// connection: an error that says its seqpb.Code by a method SeqCode. The rule
// for every such error: the request was not executed, unless the code is
// CODE_UNKNOWN_RESULT. An error without a code means that nobody knows.
package wire
