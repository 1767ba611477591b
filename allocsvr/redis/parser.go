package redis

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// What one command may be made of. redcon's reader has no such limits, and
// parses from the start again with each packet, so only its replies are used.
const (
	maxArgs = 10_001
	// maxArgBytes: longer than any key; a longer one is refused by its length alone.
	maxArgBytes    = 1024
	maxInlineBytes = 4096
	// maxCommand: as many of the longest names as one MGET may have.
	maxCommand = maxArgs * ids.NameBytesMax
)

// protocolError ends a connection after the client was told.
type protocolError struct{ reason string }

func (e *protocolError) Error() string { return "Protocol error: " + e.reason }

func protocolErrorf(format string, a ...any) error {
	return &protocolError{fmt.Sprintf(format, a...)}
}

// parser reads commands out of what has arrived. It remembers how far it got with
// the one that has not arrived whole, so that a peer who sends it in small pieces
// has no byte of it looked at more often than it deserves.
type parser struct {
	// multi: the command under way is an array, of which left arguments, at least
	// one, are still to come. The first at bytes of it are understood, and size of
	// these are arguments.
	multi          bool
	left, at, size int
	// spans of the arguments that have come, in the command's bytes.
	spans []span
}

type span struct{ from, to int32 }

// reset has the next call start with a new command, or with the last one again.
func (p *parser) reset() {
	p.multi = false
	if cap(p.spans) > 64 {
		// Do not let one large command set the size of the connection for good.
		p.spans = nil
	}
}

// next reads the command that b begins with into args: n is its length, 0 while
// it has not arrived whole. Then the next call's b begins with the same bytes. The
// arguments, none for a blank line, are valid while b is.
func (p *parser) next(b []byte, args [][]byte) (_ [][]byte, n int, err error) {
	args = args[:0]
	if !p.multi {
		line, n, err := line(b)
		if n == 0 || err != nil || len(line) == 0 {
			return args, n, err
		}
		if line[0] != '*' {
			args, err = inline(line, args)
			return args, n, err
		}
		count, err := length(line[1:])
		if err != nil || count > maxArgs {
			return args, 0, protocolErrorf("invalid multibulk length: a command and at most %d arguments are accepted", maxArgs-1)
		}
		p.multi, p.left, p.at, p.size, p.spans = true, count, n, 0, p.spans[:0]
	}
	for p.left > 0 {
		from, n, err := p.bulk(b)
		if err != nil || n < 0 {
			return args, 0, err
		}
		p.spans = append(p.spans, span{int32(from), int32(from + n)})
		p.at = from + n + len("\r\n")
		p.size += n
		p.left--
	}
	for _, s := range p.spans {
		args = append(args, b[s.from:s.to:s.to])
	}
	p.reset()
	return args, p.at, nil
}

// bulk finds the next argument, n bytes long; n is below 0 while it has not arrived whole.
func (p *parser) bulk(b []byte) (from, n int, err error) {
	line, header, err := line(b[p.at:])
	if err != nil || header == 0 {
		return 0, -1, err
	}
	if len(line) == 0 || line[0] != '$' {
		return 0, -1, protocolErrorf("expected '$'")
	}
	n, err = length(line[1:])
	if err != nil || n > maxArgBytes {
		return 0, -1, protocolErrorf("invalid bulk length: at most %d bytes are accepted", maxArgBytes)
	}
	if p.size+n > maxCommand {
		return 0, -1, protocolErrorf("command of more than %d bytes", maxCommand)
	}
	from = p.at + header
	if len(b) < from+n+len("\r\n") {
		return 0, -1, nil
	}
	if b[from+n] != '\r' || b[from+n+1] != '\n' {
		return 0, -1, protocolErrorf("bulk string without its end")
	}
	return from, n, nil
}

// inline splits a line at blanks: what a person types into telnet.
func inline(line []byte, args [][]byte) ([][]byte, error) {
	for i := 0; i < len(line); {
		for i < len(line) && line[i] == ' ' {
			i++
		}
		from := i
		for i < len(line) && line[i] != ' ' {
			if line[i] < ' ' || line[i] == 0x7f || line[i] == '"' || line[i] == '\'' {
				return args[:0], protocolErrorf("an inline command of other than plain words")
			}
			i++
		}
		if i > from {
			args = append(args, line[from:i:i])
		}
	}
	return args, nil
}

// line finds the line that b begins with, up to CR LF (or LF), without it. n is
// its length with it, 0 while its end has not arrived.
func line(b []byte) (line []byte, n int, err error) {
	i := bytes.IndexByte(b[:min(len(b), maxInlineBytes)], '\n')
	if i < 0 {
		if len(b) >= maxInlineBytes {
			return nil, 0, protocolErrorf("too big inline request")
		}
		return nil, 0, nil
	}
	n = i + 1
	if i > 0 && b[i-1] == '\r' {
		i--
	}
	return b[:i], n, nil
}

var errLength = errors.New("not a length")

// length reads a short decimal number.
func length(b []byte) (int, error) {
	if len(b) == 0 || len(b) > 9 {
		return 0, errLength
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, errLength
		}
		n = n*10 + int(c-'0')
	}
	return n, nil
}
