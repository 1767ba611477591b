package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Ports for processes are taken from below the range from which the kernel
// gives outgoing connections theirs, so that a node finds its port free again
// when it is restarted.
const (
	portLow  = 20_000
	portHigh = 32_000
)

// ports tried so far, from a random one on: a port that was found free is not
// tried again soon, so that two nodes that are yet to start do not get the same.
var (
	firstPort  = rand.Uint32N(portHigh - portLow)
	portsTried atomic.Uint32
)

// listenLow opens a free port of host in that range.
func listenLow(host string) (net.Listener, error) {
	for range 200 {
		port := int(portLow + (firstPort+portsTried.Add(1))%(portHigh-portLow))
		ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return ln, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no free port of %s between %d and %d", host, portLow, portHigh)
}

// freeAddrs finds free addresses; they are all held until the last is found.
func freeAddrs(hosts []string) ([]string, error) {
	var addrs []string
	for _, h := range hosts {
		ln, err := listenLow(h)
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs, nil
}
