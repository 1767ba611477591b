package im

import (
	"context"
	"fmt"
	"time"
)

// Store has the messages, and the drafts that are being sent. In a database these
// are two tables: messages by (conversation, number) with an index by id, and
// pending drafts by id.
type Store interface {
	// Begin notes that a draft is being sent, before it gets a number. The first
	// note counts; later ones answer it.
	Begin(ctx context.Context, d Draft) (Begun, error)
	// Put stores a message under its number and ends its draft, both or neither.
	// If its id is stored already under another number, Put stores a void message
	// under this one. It answers the message that is stored under the id. It may be
	// repeated. Another id under this number is a *TakenError.
	Put(ctx context.Context, m Message) (Message, error)
	// Range reads at most limit messages with numbers above after, ascending.
	Range(ctx context.Context, conv string, after int64, limit int) ([]Message, error)
	// Pending are the drafts of a conversation, or of all for "", that began and
	// did not end. What Put has stored before is seen by a Range after.
	Pending(ctx context.Context, conv string) ([]Draft, error)
}

// Begun is how a draft stands.
type Begun struct {
	// At is when it began, and Last the last number that the store had of its
	// conversation then.
	At   time.Time
	Last int64
	// Again: it had begun before.
	Again bool
	// Stored is the message if the draft has come to its end; then the rest is zero.
	Stored *Message
}

// TakenError: two messages have one number. The service never gives one twice, so
// the store's data, or its conversation names, are of two clusters.
type TakenError struct {
	Conv     string
	Seq      int64
	Has, Got ID
}

func (e *TakenError) Error() string {
	return fmt.Sprintf("number %d of conversation %q is message %s, so it cannot be %s: check that this store is used with one cluster only", e.Seq, e.Conv, e.Has, e.Got)
}
