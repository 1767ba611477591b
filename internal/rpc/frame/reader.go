package frame

import (
	"fmt"
	"io"
)

const (
	// firstBufferBytes holds some requests of usual size; keptBufferBytes is what a
	// connection may keep for good.
	firstBufferBytes = 8 << 10
	keptBufferBytes  = 64 << 10
	// skipBytes are read at a time of a body that is refused.
	skipBytes = 32 << 10
)

// RefusedError: a body was refused for its size, and will be skipped. The
// connection goes on.
type RefusedError struct {
	Head
	// Crowded: it is not above the limit, but there is no room for it now.
	Crowded bool
	Max     int
}

func (e *RefusedError) Error() string {
	if e.Crowded {
		return "too many large messages at once: try again"
	}
	return fmt.Sprintf("message of %d bytes: at most %d are accepted", e.Len, e.Max)
}

// Reader cuts a stream into frames.
type Reader struct {
	Src io.Reader
	// Max bounds a body.
	Max int
	// BeforeRead is called before a read that may block; inFrame tells whether a
	// frame has been read in part. nil for nothing to do.
	BeforeRead func(inFrame bool) error
	// Reserve asks for the room of a body too large for the buffer, and Release
	// gives it back. nil: there is room.
	Reserve func(n int) bool
	Release func(n int)

	buf  []byte
	r, w int // buf[r:w] is read and not taken
	skip int // bytes of a refused body that are still to come
	held int // reserved for the last large body
}

// Next is the next frame. Its body is good until the following call. The error
// is io.EOF between frames, io.ErrUnexpectedEOF within one, a *RefusedError
// after which Next may be called again, a *MalformedError, or that of a read.
func (r *Reader) Next() (Head, []byte, error) {
	r.Done()
	for r.skip > 0 {
		n := min(r.skip, r.w-r.r)
		r.r += n
		r.skip -= n
		if r.skip > 0 {
			if err := r.fill(min(r.skip, skipBytes), true); err != nil {
				return Head{}, nil, err
			}
		}
	}
	for r.w-r.r < HeadBytes {
		if err := r.fill(HeadBytes, r.w > r.r); err != nil {
			return Head{}, nil, err
		}
	}
	h, err := ParseHead(r.buf[r.r:])
	if err != nil {
		return h, nil, err
	}
	if uint64(h.Len) > uint64(r.Max) {
		return h, nil, r.refuse(h, false)
	}
	n := int(h.Len)
	if HeadBytes+n > keptBufferBytes {
		return r.large(h)
	}
	for r.w-r.r < HeadBytes+n {
		if err := r.fill(HeadBytes+n, true); err != nil {
			return h, nil, err
		}
	}
	body := r.buf[r.r+HeadBytes:][:n:n]
	r.r += HeadBytes + n
	return h, body, nil
}

// Done gives back the room of the last body; Next does so too.
func (r *Reader) Done() {
	if r.held > 0 {
		r.Release(r.held)
		r.held = 0
	}
}

func (r *Reader) refuse(h Head, crowded bool) error {
	r.r += HeadBytes
	r.skip = int(h.Len)
	return &RefusedError{Head: h, Crowded: crowded, Max: r.Max}
}

// large reads a body that does not fit the buffer into memory of its own.
func (r *Reader) large(h Head) (Head, []byte, error) {
	n := int(h.Len)
	if r.Reserve != nil {
		if !r.Reserve(n) {
			return h, nil, r.refuse(h, true)
		}
		r.held = n
	}
	r.r += HeadBytes
	// The memory grows with what has come: a promise takes none.
	body := append(make([]byte, 0, min(n, 2*keptBufferBytes)), r.buf[r.r:min(r.w, r.r+n)]...)
	r.r += len(body)
	for len(body) < n {
		if len(body) == cap(body) {
			body = append(make([]byte, 0, min(n, 2*cap(body))), body...)
		}
		if err := r.before(true); err != nil {
			return h, nil, err
		}
		m, err := r.Src.Read(body[len(body):cap(body)])
		body = body[:len(body)+m]
		if err != nil && len(body) < n {
			return h, nil, unexpected(err)
		}
	}
	return h, body, nil
}

// fill reads at least one byte into the buffer, in which want bytes will have room.
func (r *Reader) fill(want int, inFrame bool) error {
	if r.r == r.w {
		r.r, r.w = 0, 0
	}
	if r.r+want > len(r.buf) || r.w == len(r.buf) {
		rest := r.buf[r.r:r.w]
		if want > len(r.buf) {
			size := max(len(r.buf), firstBufferBytes)
			for size < want {
				size *= 2
			}
			r.buf = make([]byte, size)
		}
		r.r, r.w = 0, copy(r.buf, rest)
	}
	if err := r.before(inFrame); err != nil {
		return err
	}
	for range emptyReadsMax {
		n, err := r.Src.Read(r.buf[r.w:])
		r.w += n
		switch {
		case n > 0:
			return nil
		case err != nil && inFrame:
			return unexpected(err)
		case err != nil:
			return err
		}
	}
	return io.ErrNoProgress
}

const emptyReadsMax = 100

func (r *Reader) before(inFrame bool) error {
	if r.BeforeRead == nil {
		return nil
	}
	return r.BeforeRead(inFrame)
}

func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // io.Reader's contract is the bare value
		return io.ErrUnexpectedEOF
	}
	return err
}
