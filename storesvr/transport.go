package storesvr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

const (
	// handshakeTimeout bounds a whole preamble, not each read of it.
	handshakeTimeout = 3 * time.Second
	// handshakesMax bounds connections that have not said who they are; more are closed at once.
	handshakesMax = 64
	// raftPool is how many idle connections are kept for each peer.
	raftPool = 3
	// raftIOTimeout bounds one request, and a snapshot in proportion to its size.
	raftIOTimeout = 5 * time.Second
	acceptPause   = 50 * time.Millisecond
)

// Transport is Raft over TCP between the StoreSvrs of one Set.
type Transport struct {
	*raft.NetworkTransport
	layer *streamLayer
}

// NewTransport listens on an address and advertises cfg.RaftAddr, or what it
// listens on if that is empty.
func NewTransport(cfg Config, listen string) (raft.Transport, error) {
	cfg = cfg.withDefaults()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listen for raft on %s: %w", listen, err)
	}
	advertised := raft.ServerAddress(cfg.RaftAddr)
	if advertised == "" {
		advertised = raft.ServerAddress(ln.Addr().String())
	}
	l := newStreamLayer(ln, advertised, &cfg)
	return &Transport{
		layer: l,
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: l, MaxPool: raftPool, Timeout: raftIOTimeout,
			Logger: newHclog(cfg.Logger.Named("transport")), MsgpackUseNewTimeFormat: true,
		}),
	}, nil
}

// LocalAddr is the advertised address.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.layer.advertised }

// Listens is the address that the port is open on.
func (t *Transport) Listens() net.Addr { return t.layer.ln.Addr() }

// Close closes the port and all connections, and waits.
func (t *Transport) Close() error {
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	t.layer.wg.Wait()
	return err
}

// setNames tells the transport how to find which node an address belongs to.
func (t *Transport) setNames(f func(raft.ServerAddress) string) { t.layer.setNames(f) }

// streamLayer is raft.StreamLayer whose connections begin with a preamble.
type streamLayer struct {
	ln         net.Listener
	advertised raft.ServerAddress
	me         preamble
	resolve    func(string) string
	log        *zap.Logger

	ctx      context.Context
	cancel   context.CancelFunc
	accepted chan net.Conn
	slots    chan struct{}
	wg       sync.WaitGroup

	mu    sync.Mutex
	names func(raft.ServerAddress) string
	open  map[net.Conn]bool
}

func newStreamLayer(ln net.Listener, advertised raft.ServerAddress, cfg *Config) *streamLayer {
	l := &streamLayer{
		ln: ln, advertised: advertised, resolve: cfg.Resolve, log: cfg.Logger.Named("transport"),
		me:       preamble{version: preambleVersion, cluster: cfg.Cluster, set: cfg.Set, sender: cfg.ID},
		accepted: make(chan net.Conn),
		slots:    make(chan struct{}, handshakesMax),
		open:     map[net.Conn]bool{},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.wg.Go(l.listen)
	return l
}

func (l *streamLayer) setNames(f func(raft.ServerAddress) string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = f
}

func (l *streamLayer) listen() {
	for {
		c, err := l.ln.Accept()
		if err != nil {
			if l.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			l.log.Warn("accept failed", zap.Error(err))
			if !pause(l.ctx, acceptPause) {
				return
			}
			continue
		}
		select {
		case l.slots <- struct{}{}:
		default:
			l.log.Warn("too many raft connections that have not said who they are", zap.Stringer("peer", c.RemoteAddr()))
			c.Close()
			continue
		}
		if !l.track(c) {
			c.Close()
			return
		}
		l.wg.Go(func() { l.welcome(c) })
	}
}

// pause is a back-off that ends early with ctx.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// welcome reads an incoming preamble and hands the connection to Raft, or closes it.
func (l *streamLayer) welcome(c net.Conn) {
	p, err := l.handshake(c)
	<-l.slots
	if err != nil {
		l.log.Warn("raft connection refused", zap.Error(&PreambleError{Peer: c.RemoteAddr().String(), Reason: "bad preamble", Err: err}))
		l.drop(c)
		return
	}
	l.log.Debug("raft connection accepted", zap.String("node", p.sender))
	select {
	case l.accepted <- &trackedConn{Conn: c, layer: l}:
	case <-l.ctx.Done():
		l.drop(c)
	}
}

func (l *streamLayer) handshake(c net.Conn) (preamble, error) {
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return preamble{}, err
	}
	p, err := readPreamble(c)
	if err != nil {
		return p, err
	}
	if err := p.agrees(l.me.cluster, l.me.set, l.me.sender); err != nil {
		// It is one of ours, by its magic: tell it why.
		_, werr := c.Write(encodeAck(ackRefused, err.Error()))
		return p, errors.Join(err, werr)
	}
	if _, err := c.Write(encodeAck(ackOK, l.me.sender)); err != nil {
		return p, err
	}
	return p, c.SetDeadline(time.Time{})
}

// Accept gives Raft the connections that have passed.
func (l *streamLayer) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial connects to a peer and has it confirm who it is.
func (l *streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, timeout)
	defer cancel()
	target := string(addr)
	if l.resolve != nil {
		target = l.resolve(target)
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
	if err != nil {
		return nil, err
	}
	if !l.track(c) {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	if err := l.introduce(c, addr, timeout); err != nil {
		l.drop(c)
		return nil, &PreambleError{Peer: string(addr), Reason: "handshake failed", Err: err}
	}
	return &trackedConn{Conn: c, layer: l}, nil
}

func (l *streamLayer) introduce(c net.Conn, addr raft.ServerAddress, timeout time.Duration) error {
	p := l.me
	l.mu.Lock()
	if l.names != nil {
		p.target = l.names(addr)
	}
	l.mu.Unlock()
	if err := c.SetDeadline(time.Now().Add(min(timeout, handshakeTimeout))); err != nil {
		return err
	}
	if _, err := c.Write(p.encode()); err != nil {
		return err
	}
	id, err := readAck(c)
	if err != nil {
		return err
	}
	if p.target != "" && id != p.target {
		return fmt.Errorf("it is %q, %q was wanted", id, p.target)
	}
	return c.SetDeadline(time.Time{})
}

// Addr is the advertised address.
func (l *streamLayer) Addr() net.Addr { return namedAddr(l.advertised) }

type namedAddr string

func (a namedAddr) Network() string { return "tcp" }
func (a namedAddr) String() string  { return string(a) }

// Close closes the port and every connection.
func (l *streamLayer) Close() error {
	l.cancel()
	err := l.ln.Close()
	l.mu.Lock()
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for c := range open {
		c.Close()
	}
	return err
}

// track remembers a connection for Close; false when that has been.
func (l *streamLayer) track(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		return false
	}
	l.open[c] = true
	return true
}

func (l *streamLayer) drop(c net.Conn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
	c.Close()
}

// trackedConn is forgotten by the layer when it is closed.
type trackedConn struct {
	net.Conn
	layer *streamLayer
}

func (c *trackedConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.open, c.Conn)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
