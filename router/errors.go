package router

import (
	"errors"
	"fmt"
)

// InvalidError: a table or a message about one contradicts itself. Nothing was changed.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return "invalid route table: " + e.Reason }

// ForeignError: the message is about another cluster, or about one that was
// restored from a backup since (which makes a new cluster id).
type ForeignError struct {
	Cluster, ClusterID       string
	GotCluster, GotClusterID string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("routes of cluster %q (%s) offered to a table of cluster %q (%s): fetch the whole table and replace the held one if the cluster was restored, else check the address",
		e.GotCluster, e.GotClusterID, e.Cluster, e.ClusterID)
}

// GapError: the message does not follow from what is held. Ask for the whole table.
type GapError struct {
	// Set is empty when it is the Set map that is missing.
	Set  string
	Held uint64
	// Since is the version that the message builds on.
	Since uint64
}

func (e *GapError) Error() string {
	what := "the set map"
	if e.Set != "" {
		what = fmt.Sprintf("set %q", e.Set)
	}
	return fmt.Sprintf("route delta for %s builds on version %d, but version %d is held: fetch the whole table", what, e.Since, e.Held)
}

// ConflictError: two messages of one cluster cannot both be true. Nothing was changed.
type ConflictError struct{ Reason string }

func (e *ConflictError) Error() string {
	return "conflicting routes: " + e.Reason + ": fetch the whole table and replace the held one"
}

// BackwardsError: a table older than the held one was offered for publication.
type BackwardsError struct {
	// Set is empty when it is the Set map that is older.
	Set       string
	Held, Got uint64
}

func (e *BackwardsError) Error() string {
	what := "set map"
	if e.Set != "" {
		what = fmt.Sprintf("set %q", e.Set)
	}
	return fmt.Sprintf("routes of %s would go back from version %d to %d: replace explicitly if the cluster was restored", what, e.Held, e.Got)
}

// NeedsWhole tells whether an error of Merge is mended by fetching the whole table.
func NeedsWhole(err error) bool {
	var gap *GapError
	return errors.As(err, &gap)
}
