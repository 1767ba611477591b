package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Local is the AllocSvr of this process.
type Local interface {
	// AllocReady and CurrentReady answer what can be answered without a wait.
	AllocReady(asks []allocsvr.Ask) (waiting int)
	AllocEach(ctx context.Context, asks []allocsvr.Ask, wait time.Duration)
	CurrentReady(reads []allocsvr.Read) (waiting int)
	CurrentEach(ctx context.Context, reads []allocsvr.Read, wait time.Duration)
}

// Forward reaches the owner of any key, wherever it is.
type Forward interface {
	// Alloc answers the last of N consecutive numbers of each key, those of one
	// key in the order of the calls.
	Alloc(ctx context.Context, space string, calls []Call)
	Current(ctx context.Context, space string, calls []Call)
}

// Call is one key of a forwarded command: Key and N ask, Value and Err answer.
type Call struct {
	Key   string
	N     uint32
	Value int64
	Err   error
}

// Config of a Server.
type Config struct {
	Local   Local
	Forward Forward
	// Spaces are the cluster's, by id; none while they are not known yet.
	Spaces func() []ids.Space
	// Password that clients must give; "" for none.
	Password string
	// MaxConns bounds the connections; one more is told so and closed. 0: 10 000.
	MaxConns int
	// CallTimeout bounds a command. 0: 5 s.
	CallTimeout time.Duration
	// MaxWait bounds the time from the first byte of a command to its last, the
	// writing of a reply, and the time a peer has to close after its last one. 0: 30 s.
	MaxWait time.Duration
	Version string
	Logger  *zap.Logger

	linger time.Duration // 0: lingerMax
}

// Server serves until Stop.
type Server struct {
	cfg    Config
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	loops  []*loop
	conns  atomic.Int64

	// stopping: no new commands. killed: and those under way need not be answered.
	stopping, killed atomic.Bool
	noMore           chan struct{} // closed with stopping
	once             sync.Once
	accepting        chan struct{} // closed when nothing is accepted any more
}

// Serve serves on ln, which it owns from now on, also when it fails. Its
// connections must be sockets.
func Serve(ln net.Listener, cfg Config) (*Server, error) {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 10_000
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = 5 * time.Second
	}
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 30 * time.Second
	}
	if cfg.linger == 0 {
		cfg.linger = lingerMax
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	s := &Server{cfg: cfg, ln: ln, noMore: make(chan struct{}), accepting: make(chan struct{})}
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l, err := newLoop(s)
		if err != nil {
			for _, l := range s.loops {
				l.end()
			}
			ln.Close()
			return nil, fmt.Errorf("redis port: %w", err)
		}
		s.loops = append(s.loops, l)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, l := range s.loops {
		s.wg.Go(l.run)
	}
	s.wg.Go(s.accept)
	return s, nil
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Stop takes no new commands, answers those that were read, and gives the peers a
// moment to read that; it waits for all of it until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.refuse()
	<-s.accepting
	s.stopping.Store(true)
	s.lookAround()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	defer s.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.cancel()
	s.killed.Store(true)
	s.lookAround()
	<-done
	return ctx.Err()
}

// refuse takes no more connections.
func (s *Server) refuse() {
	s.once.Do(func() {
		close(s.noMore)
		s.ln.Close()
	})
}

func (s *Server) lookAround() {
	for _, l := range s.loops {
		l.post(nil)
	}
}

const acceptBackoff = 50 * time.Millisecond

func (s *Server) accept() {
	defer close(s.accepting)
	for next := 0; ; next++ {
		nc, err := s.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.cfg.Logger.Warn("cannot accept a redis connection", zap.Error(err))
			select {
			case <-time.After(acceptBackoff):
			case <-s.noMore:
				return
			}
			continue
		}
		if s.conns.Add(1) > int64(s.cfg.MaxConns) {
			s.conns.Add(-1)
			_, _ = io.WriteString(nc, "-ERR max number of clients reached\r\n")
			nc.Close()
			continue
		}
		fd, err := detach(nc)
		if err != nil {
			s.conns.Add(-1)
			s.cfg.Logger.Warn("cannot serve a redis connection", zap.Error(err))
			continue
		}
		l := s.loops[next%len(s.loops)]
		l.post(&conn{s: s, l: l, fd: fd, authed: s.cfg.Password == "", resp: 2})
	}
}

// detach takes a connection's socket away from package net, whose own poller
// would else be told of everything that happens to it too.
func detach(nc net.Conn) (fd int, err error) {
	defer nc.Close()
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("%T is not a socket", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	fd = -1
	if cerr := raw.Control(func(have uintptr) {
		// It stays as it is otherwise: it does not block, and does not delay small replies.
		fd, err = unix.FcntlInt(have, unix.F_DUPFD_CLOEXEC, 0)
	}); cerr != nil {
		return 0, cerr
	}
	return fd, err
}
