package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Local is the AllocSvr of this process.
type Local interface {
	AllocEach(ctx context.Context, asks []allocsvr.Ask, wait time.Duration)
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
	// MaxWait bounds the time from the first byte of a command to its last,
	// and the writing of a reply. 0: 30 s.
	MaxWait time.Duration
	Version string
	Logger  *zap.Logger
}

// Server serves until Stop.
type Server struct {
	cfg    Config
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	stopping atomic.Bool

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// Serve serves on ln, which it owns from now on.
func Serve(ln net.Listener, cfg Config) *Server {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 10_000
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = 5 * time.Second
	}
	if cfg.MaxWait == 0 {
		cfg.MaxWait = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	s := &Server{cfg: cfg, ln: ln, conns: map[*conn]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Stop takes no new commands and waits for those under way until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping.Store(true)
	s.ln.Close()
	for c := range s.conns {
		if c.state.CompareAndSwap(idle, ended) {
			c.Close()
		}
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	defer s.cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.cancel()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	<-done
	return ctx.Err()
}

const acceptBackoff = 50 * time.Millisecond

func (s *Server) accept() {
	for {
		nc, err := s.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.cfg.Logger.Warn("cannot accept a redis connection", zap.Error(err))
			select {
			case <-time.After(acceptBackoff):
			case <-s.ctx.Done():
				return
			}
			continue
		}
		c := newConn(nc, s)
		s.mu.Lock()
		switch {
		case s.stopping.Load():
			nc.Close()
		case len(s.conns) >= s.cfg.MaxConns:
			_, _ = io.WriteString(nc, "-ERR max number of clients reached\r\n")
			nc.Close()
		default:
			s.conns[c] = struct{}{}
			s.wg.Go(c.serve)
		}
		s.mu.Unlock()
	}
}
