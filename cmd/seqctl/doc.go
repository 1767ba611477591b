// Command seqctl makes one-off calls and administers a cluster.
//
// It holds to the command-line contract: data and nothing else on stdout, as a
// table or, with --output json, as one object a line; errors on stderr, as
// "error: what happened: what to do"; exit status 0 for done, 1 for failed and 2
// for wrong usage. What can be refused without a server is refused before one is
// asked, and a command with one malformed key asks for nothing at all.
//
// It retries only what was surely not carried out, or does no harm twice.
package main
