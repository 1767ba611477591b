// Package testdata has real-looking input for tests, and its readers.
//
// The tools skip folders of this name when they look for packages, so what
// tests these readers is beside their users: scripts/gen-trace and chaos.
package testdata

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"
)

//go:embed chat-trace.txt.gz
var chatTrace []byte

// Trace is what the clients of a chat service sent in a day.
type Trace struct {
	Seed          uint64
	Conversations []Conversation
	// Messages is how many different messages were sent.
	Messages int
	// Sends are in the order of time; a message may be sent more than once.
	Sends []Send
}

// Conversation is a stream: its name and how many people are in it.
type Conversation struct {
	Name    string
	Members int
	// Messages is how many different messages it got.
	Messages int
}

// Send is one attempt to send a message.
type Send struct {
	At time.Duration
	// Message numbers the messages from 0, in the order of their first sending.
	Message int
	// Conversation is an index into Conversations, Sender a member of it.
	Conversation, Sender int
	// Retry: the message was sent before; its client did not see the answer in time.
	Retry bool
}

// RequestID is the UUID (version 8) that the client gave the message.
func (t *Trace) RequestID(message int) (id [16]byte) {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], t.Seed)
	binary.BigEndian.PutUint64(b[8:], uint64(message))
	sum := sha256.Sum256(b[:])
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// ChatTrace reads the committed trace, which scripts/gen-trace made.
func ChatTrace() (*Trace, error) {
	text, err := ChatTraceText()
	if err != nil {
		return nil, err
	}
	return ReadTrace(bytes.NewReader(text))
}

// ChatTraceText is the committed trace as text.
func ChatTraceText() ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(chatTrace))
	if err != nil {
		return nil, fmt.Errorf("chat-trace.txt.gz: %w", err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("chat-trace.txt.gz: %w", err)
	}
	return text, nil
}

// WriteTrace writes a trace as text:
//
//	seqtrace 1 SEED CONVERSATIONS SENDS
//	c NAME MEMBERS                     a conversation, numbered from 0
//	m MS CONVERSATION SENDER           a new message, MS after the line before it
//	r MS MESSAGE                       a message sent again
func WriteTrace(w io.Writer, t *Trace) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "seqtrace 1 %d %d %d\n", t.Seed, len(t.Conversations), len(t.Sends))
	for _, c := range t.Conversations {
		fmt.Fprintf(b, "c %s %d\n", c.Name, c.Members)
	}
	last := time.Duration(0)
	for _, s := range t.Sends {
		ms := (s.At - last).Milliseconds()
		if s.Retry {
			fmt.Fprintf(b, "r %d %d\n", ms, s.Message)
		} else {
			fmt.Fprintf(b, "m %d %d %d\n", ms, s.Conversation, s.Sender)
		}
		last += time.Duration(ms) * time.Millisecond
	}
	return b.Flush()
}

// ReadTrace reads what WriteTrace wrote, and refuses anything else with the line.
func ReadTrace(r io.Reader) (*Trace, error) {
	t := &Trace{}
	sc := bufio.NewScanner(r)
	var conversations, sends int
	at, line := time.Duration(0), 0
	var first []Send // of each message
	bad := func(why string) error { return fmt.Errorf("trace, line %d: %s", line, why) }
	for sc.Scan() {
		line++
		text := sc.Text()
		var ms int64
		var s Send
		var err error
		switch {
		case line == 1:
			if _, err := fmt.Sscanf(text, "seqtrace 1 %d %d %d", &t.Seed, &conversations, &sends); err != nil {
				return nil, bad("not a trace of version 1")
			}
			continue
		case strings.HasPrefix(text, "c "):
			var c Conversation
			if _, err := fmt.Sscanf(text, "c %s %d", &c.Name, &c.Members); err != nil || c.Members < 1 {
				return nil, bad("not a conversation")
			}
			t.Conversations = append(t.Conversations, c)
			continue
		case strings.HasPrefix(text, "m "):
			_, err = fmt.Sscanf(text, "m %d %d %d", &ms, &s.Conversation, &s.Sender)
			if err == nil && (s.Conversation < 0 || s.Conversation >= len(t.Conversations) ||
				s.Sender < 0 || s.Sender >= t.Conversations[s.Conversation].Members) {
				return nil, bad("no such conversation, or no such member")
			}
		case strings.HasPrefix(text, "r "):
			_, err = fmt.Sscanf(text, "r %d %d", &ms, &s.Message)
			if err == nil && (s.Message < 0 || s.Message >= len(first)) {
				return nil, bad("a retry of a message that was not sent yet")
			}
			s.Retry = true
		default:
			err = io.ErrUnexpectedEOF
		}
		if err != nil || ms < 0 {
			return nil, bad("neither a conversation, a message nor a retry")
		}
		at += time.Duration(ms) * time.Millisecond
		s.At = at
		if s.Retry {
			s.Conversation, s.Sender = first[s.Message].Conversation, first[s.Message].Sender
		} else {
			s.Message = len(first)
			first = append(first, s)
			t.Conversations[s.Conversation].Messages++
		}
		t.Sends = append(t.Sends, s)
	}
	if err := sc.Err(); err != nil {
		return nil, bad(err.Error())
	}
	if line == 0 || len(t.Conversations) != conversations || len(t.Sends) != sends {
		return nil, bad("the trace is cut")
	}
	t.Messages = len(first)
	return t, nil
}
