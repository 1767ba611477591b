package storesvr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A connection between StoreSvrs begins with a preamble that says who calls
// whom, and an acknowledgement. Raft's own bytes follow only when both agree: a
// peer of another cluster, or anything else that finds the port, never reaches
// Raft's decoder.
const (
	preambleMagic   = "SEQRAFT\n"
	preambleVersion = 1
	preambleTextMax = 255
	// ackTextMax bounds the reason in a refusal.
	ackTextMax = 512

	ackOK      = 0
	ackRefused = 1
)

// preamble is what the caller says.
type preamble struct {
	version              uint16
	cluster, set, sender string
	// target is whom the caller believes to reach; empty if it does not know.
	target string
}

// PreambleError says why a connection between StoreSvrs was refused.
type PreambleError struct {
	// Peer is the other end's address.
	Peer   string
	Reason string
	Err    error
}

func (e *PreambleError) Error() string {
	s := fmt.Sprintf("raft connection with %s refused: %s", e.Peer, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *PreambleError) Unwrap() error { return e.Err }

func (p *preamble) encode() []byte {
	b := binary.BigEndian.AppendUint16([]byte(preambleMagic), p.version)
	for _, s := range []string{p.cluster, p.set, p.sender, p.target} {
		b = append(append(b, byte(len(s))), s...)
	}
	return b
}

// readPreamble reads at most a few hundred bytes, whatever the peer sends.
func readPreamble(r io.Reader) (p preamble, err error) {
	head := make([]byte, len(preambleMagic)+2)
	if _, err := io.ReadFull(r, head); err != nil {
		return p, err
	}
	if string(head[:len(preambleMagic)]) != preambleMagic {
		return p, errors.New("it does not begin like one of ours")
	}
	p.version = binary.BigEndian.Uint16(head[len(preambleMagic):])
	if p.version != preambleVersion {
		return p, fmt.Errorf("protocol version %d, this node speaks %d", p.version, preambleVersion)
	}
	for _, s := range []*string{&p.cluster, &p.set, &p.sender, &p.target} {
		if *s, err = readText(r, 1); err != nil {
			return p, err
		}
	}
	return p, nil
}

// readText reads a text whose length comes first, in so many bytes.
func readText(r io.Reader, lengthBytes int) (string, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[2-lengthBytes:]); err != nil {
		return "", err
	}
	length := int(binary.BigEndian.Uint16(n[:]))
	if length > ackTextMax {
		return "", fmt.Errorf("text of %d bytes, at most %d are allowed", length, ackTextMax)
	}
	b := make([]byte, length)
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// agrees checks what a caller says against who we are.
func (p *preamble) agrees(cluster, set, id string) error {
	switch {
	case p.cluster != cluster:
		return fmt.Errorf("it is of cluster %q, this node of %q", p.cluster, cluster)
	case p.set != set:
		return fmt.Errorf("it is of set %q, this node of %q", p.set, set)
	case p.sender == "":
		return errors.New("it does not say who it is")
	case p.sender == id:
		return fmt.Errorf("it says that it is %q, as this node is", id)
	case p.target != "" && p.target != id:
		return fmt.Errorf("it wants %q, this node is %q", p.target, id)
	}
	return nil
}

// ack is the answer: who we are, or why not.
func encodeAck(status byte, text string) []byte {
	text = text[:min(len(text), ackTextMax)]
	b := append([]byte(preambleMagic), status)
	b = binary.BigEndian.AppendUint16(b, uint16(len(text)))
	return append(b, text...)
}

// readAck answers the peer's id.
func readAck(r io.Reader) (string, error) {
	head := make([]byte, len(preambleMagic)+1)
	if _, err := io.ReadFull(r, head); err != nil {
		return "", err
	}
	if string(head[:len(preambleMagic)]) != preambleMagic {
		return "", errors.New("its answer is not that of a StoreSvr")
	}
	text, err := readText(r, 2)
	if err != nil {
		return "", err
	}
	if head[len(preambleMagic)] != ackOK {
		return "", fmt.Errorf("it says: %s", text)
	}
	return text, nil
}
