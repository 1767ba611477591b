package frame

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func frameOf(k Kind, arg uint32, number uint64, body []byte) []byte {
	b := append(Begin(nil, k, arg, number), body...)
	Finish(b, 0)
	return b
}

func TestFramesComeOutAsTheyWentIn(t *testing.T) {
	sizes := []int{0, 1, 100, firstBufferBytes - HeadBytes, firstBufferBytes, keptBufferBytes - HeadBytes, keptBufferBytes, 300_000}
	var stream []byte
	for i, n := range sizes {
		stream = append(stream, frameOf(Alloc, uint32(i), uint64(i)<<40, bytes.Repeat([]byte{byte(i + 1)}, n))...)
		stream = append(stream, frameOf(Cancel, 0, uint64(i), nil)...)
	}
	for name, src := range map[string]io.Reader{
		"at once": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves": iotest.HalfReader(bytes.NewReader(stream)), "with the end": iotest.DataErrReader(bytes.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			held := 0
			r := Reader{
				Src: src, Max: 1 << 20,
				Reserve: func(n int) bool { held += n; return true }, Release: func(n int) { held -= n },
			}
			for i, n := range sizes {
				h, body, err := r.Next()
				if err != nil || h.Kind != Alloc || h.Arg != uint32(i) || h.Number != uint64(i)<<40 || !bytes.Equal(body, bytes.Repeat([]byte{byte(i + 1)}, n)) {
					t.Fatalf("frame %d: %+v, %d bytes, %v", i, h, len(body), err)
				}
				if h, body, err = r.Next(); err != nil || h.Kind != Cancel || h.Number != uint64(i) || len(body) != 0 {
					t.Fatalf("after frame %d: %+v, %d bytes, %v", i, h, len(body), err)
				}
			}
			if _, _, err := r.Next(); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
			if held != 0 {
				t.Errorf("%d bytes are still reserved", held)
			}
		})
	}
}

func TestABodyThatIsRefusedCostsNothingElse(t *testing.T) {
	large, next := frameOf(Alloc, 0, 1, make([]byte, 200_000)), frameOf(Current, 0, 2, []byte("x"))
	for name, r := range map[string]*Reader{
		"too large": {Max: 100_000},
		"no room":   {Max: 1 << 20, Reserve: func(int) bool { return false }, Release: func(int) { t.Error("gave back what it did not get") }},
	} {
		r.Src = iotest.HalfReader(bytes.NewReader(append(bytes.Clone(large), next...)))
		_, _, err := r.Next()
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Number != 1 || refused.Crowded != (name == "no room") {
			t.Fatalf("%s: %v", name, err)
		}
		if h, body, err := r.Next(); err != nil || h.Number != 2 || string(body) != "x" {
			t.Errorf("%s: then %+v %q, %v", name, h, body, err)
		}
		if len(r.buf) > keptBufferBytes {
			t.Errorf("%s: the buffer has %d bytes", name, len(r.buf))
		}
	}
}

func TestMemoryIsNotTakenOnAPromise(t *testing.T) {
	reserved := 0
	r := Reader{
		Src: bytes.NewReader(Begin(nil, Alloc, 0, 1)), Max: 4 << 20,
		Reserve: func(n int) bool { reserved = n; return false }, Release: func(int) {},
	}
	head := frameOf(Alloc, 0, 1, make([]byte, 4<<20))[:HeadBytes]
	r.Src = bytes.NewReader(head)
	if _, _, err := r.Next(); reserved != 4<<20 {
		t.Errorf("asked for room for %d bytes, %v", reserved, err)
	}
}

func TestWhatIsNotAFrameIsMalformed(t *testing.T) {
	bad := map[string]func(b []byte){
		"kind 0":               func(b []byte) { b[4] = 0 },
		"an unknown kind":      func(b []byte) { b[4] = 0x60 },
		"a reserved byte":      func(b []byte) { b[6] = 1 },
		"a ping with a body":   func(b []byte) { b[4], b[0] = byte(Ping), 1 },
		"a cancel with a body": func(b []byte) { b[4], b[3] = byte(Cancel), 1 },
	}
	for name, spoil := range bad {
		b := frameOf(Alloc, 0, 1, nil)
		spoil(b)
		r := Reader{Src: bytes.NewReader(b), Max: 1 << 20}
		var malformed *MalformedError
		if _, _, err := r.Next(); !errors.As(err, &malformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, cut := range []int{1, HeadBytes - 1, HeadBytes, HeadBytes + 2} {
		r := Reader{Src: bytes.NewReader(frameOf(Alloc, 0, 1, []byte("abc"))[:cut]), Max: 1 << 20}
		if _, _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut after %d bytes: %v", cut, err)
		}
	}
}

func TestTheReaderSaysBeforeItMayBlock(t *testing.T) {
	b := frameOf(Alloc, 0, 1, []byte("abc"))
	stream := append(append(bytes.Clone(b), b...), b[:4]...)
	var calls []bool
	r := Reader{Src: bytes.NewReader(stream), Max: 1 << 20, BeforeRead: func(in bool) error { calls = append(calls, in); return nil }}
	for range 2 {
		if _, _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if len(calls) != 1 || calls[0] {
		t.Errorf("two frames at hand: %v", calls)
	}
	if _, _, err := r.Next(); err == nil || len(calls) != 2 || !calls[1] {
		t.Errorf("a frame cut off: %v, %v", calls, err)
	}
}

// Whatever comes, the reader ends; what it takes for frames is what was there.
func FuzzReader(f *testing.F) {
	f.Add(append(frameOf(Alloc, 5, 7, []byte("abc")), frameOf(Ping, 0, 1, nil)...), uint8(3))
	f.Add(frameOf(Reply, 0, 1, make([]byte, 3000)), uint8(1))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 1, 2, 3}, uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, by uint8) {
		r := Reader{Src: &chunks{b: b, n: int(by) + 1}, Max: 1000}
		var again []byte
		for {
			h, body, err := r.Next()
			var refused *RefusedError
			if errors.As(err, &refused) {
				return
			}
			if err != nil {
				break
			}
			if len(body) > 1000 {
				t.Fatalf("a body of %d bytes", len(body))
			}
			again = append(again, frameOf(h.Kind, h.Arg, h.Number, body)...)
		}
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("read %x out of %x", again, b)
		}
		if len(r.buf) > keptBufferBytes {
			t.Fatalf("the buffer has %d bytes", len(r.buf))
		}
	})
}

// chunks gives n bytes at a time.
type chunks struct {
	b []byte
	n int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.b[:min(c.n, len(c.b))])
	c.b = c.b[n:]
	return n, nil
}
