package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// address checks HOST:PORT. An empty host listens everywhere.
func address(s string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%q is no HOST:PORT", s)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q: the port is no number up to 65535", s)
	}
	return host, int(n), nil
}

func wildcard(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// advertised checks an address by which others are to reach this node.
func advertised(s string, portRequired bool) error {
	host, port, err := address(s)
	switch {
	case err != nil:
		return err
	case wildcard(host):
		return fmt.Errorf("%q is a wildcard: others need a host that leads to this node", s)
	case port == 0 && portRequired:
		return fmt.Errorf("%q has no port: it must stay the same over restarts", s)
	}
	return nil
}

// Peer is a member of a StoreSvr group: ID=RAFT_ADDR/RPC_ADDR[/HTTP_ADDR].
type Peer struct{ ID, RaftAddr, RPCAddr, HTTPAddr string }

func parsePeer(s string) (Peer, error) {
	id, rest, ok := strings.Cut(s, "=")
	parts := strings.Split(rest, "/")
	if !ok || id == "" || len(parts) < 2 || len(parts) > 3 {
		return Peer{}, fmt.Errorf("%q: want ID=RAFT_ADDR/RPC_ADDR[/HTTP_ADDR]", s)
	}
	p := Peer{ID: id, RaftAddr: parts[0], RPCAddr: parts[1]}
	if len(parts) == 3 {
		p.HTTPAddr = parts[2]
	}
	for _, a := range parts {
		if err := advertised(a, true); err != nil {
			return Peer{}, fmt.Errorf("%q: %w", s, err)
		}
	}
	return p, nil
}

// name checks what identifies a node, a Set or a cluster.
func name(s string) error {
	if s == "" {
		return errors.New("must be given")
	}
	if len(s) > 64 {
		return fmt.Errorf("%d bytes: at most 64 are allowed", len(s))
	}
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.') {
			return fmt.Errorf("%q: only letters, digits, '-', '_' and '.' are allowed", s)
		}
	}
	return nil
}
