package chaos

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// line is the way of clients to a node: what a node advertises as its address. It
// can lose answers: the node has done what it was asked for, and who asked it
// sees the connection end.
type line struct {
	ln net.Listener
	// ready is closed once to, the node's address, is known.
	ready chan struct{}
	to    string
	// losing: the connection that brings the next answer is to end instead.
	losing atomic.Bool
	lost   atomic.Int32

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	over  bool
	wg    sync.WaitGroup
}

// requestBytes is what a thousand keys with their request ids are more than.
const requestBytes = 8 << 10

// numbered stands in the answer to a fan-out whose keys are all new: their numbers are
// one each. An answer that refuses its keys, say since raising all of them took too
// long, has it nowhere: losing that would lose no number.
var numbered = bytes.Repeat([]byte{1}, 64)

// lines are those of nodes that are yet to be started.
func lines(t *testing.T, nodes ...string) map[string]*line {
	t.Helper()
	all := map[string]*line{}
	for _, node := range nodes {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		w := &line{ln: ln, ready: make(chan struct{}), conns: map[net.Conn]struct{}{}}
		w.wg.Go(w.accept)
		t.Cleanup(w.end)
		all[node] = w
	}
	return all
}

func (w *line) addr() string { return w.ln.Addr().String() }

func (w *line) connect(to string) {
	w.to = to
	close(w.ready)
}

func (w *line) accept() {
	for {
		conn, err := w.ln.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.carry(conn) })
	}
}

// keep has a connection end with the line.
func (w *line) keep(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		_ = conn.Close()
		return
	}
	w.conns[conn] = struct{}{}
}

func (w *line) drop(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, conn)
	_ = conn.Close()
}

func (w *line) carry(client net.Conn) {
	w.keep(client)
	defer w.drop(client)
	<-w.ready
	node, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	w.keep(node)
	defer w.drop(node)
	var asked atomic.Int64 // bytes since an answer is to be lost
	w.wg.Go(func() {
		defer w.drop(node)
		for buf := make([]byte, 64<<10); ; {
			n, err := client.Read(buf)
			if w.losing.Load() {
				asked.Add(int64(n))
			} else {
				asked.Store(0)
			}
			if _, werr := node.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	for buf := make([]byte, 64<<10); ; {
		n, err := node.Read(buf)
		if err != nil {
			return
		}
		numbers := bytes.Contains(buf[:n], numbered)
		if numbers && asked.Load() >= requestBytes && w.losing.CompareAndSwap(true, false) {
			w.lost.Add(1)
			return
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// end ends all connections, and waits for that.
func (w *line) end() {
	_ = w.ln.Close()
	select {
	case <-w.ready:
	default:
		close(w.ready)
	}
	w.mu.Lock()
	w.over = true
	for conn := range w.conns {
		_ = conn.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
}
