package im

import (
	"encoding/hex"

	"github.com/seqsvr/seqsvr/client"
)

// ID is a message's UUID, made by the device that wrote it and the same however
// often it is sent. It is also the request id of the message's number.
type ID [16]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Draft is a message without a number.
type Draft struct {
	ID         ID
	Conv       string
	From, Body string
}

// Message is a draft that has its number. It is stored and sent whole: a device
// needs all of it to know what it lacks.
type Message struct {
	Draft
	// Seq is its number in the conversation, and Prev the one before it.
	Seq, Prev int64
	// Hole ends at Prev: these numbers may never have been issued. Almost always nil.
	Hole *client.Hole
	// Stray has numbers of which an earlier attempt to number this message may
	// have taken one, which nobody has then. Almost always nil.
	Stray *Span
	// Void: the number has no message, for good; From and Body are empty.
	Void bool
}

// Span is the numbers From … To, inclusive.
type Span struct{ From, To int64 }

// Len is how many there are.
func (s Span) Len() int64 { return s.To - s.From + 1 }

func (s Span) has(n int64) bool { return s.From <= n && n <= s.To }

// cut is what both have; its Len is not positive if that is nothing.
func (s Span) cut(o Span) Span { return Span{max(s.From, o.From), min(s.To, o.To)} }

// Space is where conversations have their numbers; a cluster has it by default.
const Space = "conv"

// Key is the key of a conversation.
func Key(conv string) client.Key { return client.Name(Space, conv) }
