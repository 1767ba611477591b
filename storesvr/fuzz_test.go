package storesvr

import (
	"bytes"
	"testing"
)

func FuzzPreamble(f *testing.F) {
	p := preamble{version: preambleVersion, cluster: "c", set: "s1", sender: "n1", target: "n2"}
	f.Add(p.encode())
	f.Add([]byte(preambleMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := readPreamble(bytes.NewReader(b))
		if err != nil {
			return
		}
		if e := p.encode(); !bytes.HasPrefix(b, e) {
			t.Fatalf("%q was read as %+v", b, p)
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add(encodeAck(ackOK, "n1"))
	f.Add(encodeAck(ackRefused, "no"))
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := readAck(bytes.NewReader(b))
		if err == nil && !bytes.HasPrefix(b, encodeAck(ackOK, id)) {
			t.Fatalf("%q was read as %q", b, id)
		}
	})
}
