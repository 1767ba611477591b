package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// What one command may be made of. redcon's reader has no such limits, and
// parses from the start again with each packet, so only its writer is used.
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

// reader reads commands; the arguments are valid until the next read.
type reader struct {
	br   *bufio.Reader
	buf  []byte
	ends []int
	args [][]byte
}

func newReader(r io.Reader) *reader { return &reader{br: bufio.NewReaderSize(r, 16<<10)} }

// buffered reports whether more of what was sent has arrived already.
func (r *reader) buffered() bool { return r.br.Buffered() > 0 }

// command reads one command; an empty one for a blank line.
func (r *reader) command() ([][]byte, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	if len(line) == 0 {
		return nil, nil
	}
	if line[0] != '*' {
		return r.inline(line)
	}
	count, err := length(line[1:])
	if err != nil || count > maxArgs {
		return nil, protocolErrorf("invalid multibulk length")
	}
	r.buf, r.ends = r.buf[:0], r.ends[:0]
	for range count {
		if err := r.bulk(); err != nil {
			return nil, err
		}
	}
	r.args = r.args[:0]
	from := 0
	for _, to := range r.ends {
		r.args = append(r.args, r.buf[from:to:to])
		from = to
	}
	if cap(r.buf) > 64<<10 {
		// Do not let one large command set the size of the connection for good.
		defer func() { r.buf = nil }()
	}
	return r.args, nil
}

func (r *reader) bulk() error {
	line, err := r.line()
	if err != nil {
		return err
	}
	if len(line) == 0 || line[0] != '$' {
		return protocolErrorf("expected '$'")
	}
	n, err := length(line[1:])
	if err != nil || n > maxArgBytes {
		return protocolErrorf("invalid bulk length: at most %d bytes are accepted", maxArgBytes)
	}
	from := len(r.buf)
	if from+n > maxCommand {
		return protocolErrorf("command of more than %d bytes", maxCommand)
	}
	r.buf = slices.Grow(r.buf, n+2)[:from+n+2]
	if _, err := io.ReadFull(r.br, r.buf[from:]); err != nil {
		return err
	}
	if r.buf[from+n] != '\r' || r.buf[from+n+1] != '\n' {
		return protocolErrorf("bulk string without its end")
	}
	r.buf = r.buf[:from+n]
	r.ends = append(r.ends, len(r.buf))
	return nil
}

// inline splits a line at blanks: what a person types into telnet.
func (r *reader) inline(line []byte) ([][]byte, error) {
	r.args = r.args[:0]
	r.buf = append(r.buf[:0], line...)
	for i := 0; i < len(r.buf); {
		for i < len(r.buf) && r.buf[i] == ' ' {
			i++
		}
		from := i
		for i < len(r.buf) && r.buf[i] != ' ' {
			if r.buf[i] < ' ' || r.buf[i] == 0x7f || r.buf[i] == '"' || r.buf[i] == '\'' {
				return nil, protocolErrorf("an inline command of other than plain words")
			}
			i++
		}
		if i > from {
			r.args = append(r.args, r.buf[from:i:i])
		}
	}
	return r.args, nil
}

// line reads up to CR LF (or LF), without it.
func (r *reader) line() ([]byte, error) {
	line, err := r.br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || len(line) > maxInlineBytes {
		return nil, protocolErrorf("too big inline request")
	}
	if err != nil {
		if err == io.EOF && len(line) > 0 {
			return nil, io.ErrUnexpectedEOF
		}
		return nil, err
	}
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, nil
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
