// Command seqctl administers a cluster and makes one-off calls.
package main
