package check

import (
	"bytes"
	"testing"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Whatever a file says, it is judged without a panic, and the verdict agrees with the counts.
func FuzzCheck(f *testing.F) {
	for _, text := range []string{
		"1-2 alloc 1\n3-? alloc n=2\n4-5 read 3\n6-7 alloc 4 id=a\n8-9 alloc 4 id=a replayed",
		"1-2 alloc 1\nfault machine-loss 3-4 losses=1\n5-6 alloc 101 hole=2..100\nledger 2..100 machine loss",
		"1-2 read 9223372036854775807\n3-4 alloc 9223372036854775807\nledger 5..9223372036854775807 advance",
	} {
		var b bytes.Buffer
		if err := script(f, text).Write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := history.Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		r := Check(h, Options{})
		if r.OK != (len(r.Violations) == 0) || r.OK != (r.Err() == nil) || r.NumbersLost < 0 {
			t.Fatalf("%+v", r)
		}
	})
}
