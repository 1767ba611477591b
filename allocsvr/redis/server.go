package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tidwall/redcon"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// Local is the AllocSvr of this process.
type Local interface {
	AllocOne(ctx context.Context, key ids.Key, n uint32, requestID *[16]byte) (allocsvr.Result, error)
	CurrentOne(ctx context.Context, key ids.Key) (ids.Seq, error)
}

// Forward reaches the owner of any key, wherever it is.
type Forward interface {
	// Alloc answers the last of n consecutive numbers.
	Alloc(ctx context.Context, space, key string, n uint32) (int64, error)
	Current(ctx context.Context, space, key string) (int64, error)
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

	mu       sync.Mutex
	stopping bool
	conns    map[*conn]bool // true while it waits for a command
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
	s := &Server{cfg: cfg, ln: ln, conns: map[*conn]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Stop takes no new commands and waits for those under way until ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.ln.Close()
	for c, idle := range s.conns {
		if idle {
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
		c := &conn{Conn: nc, s: s, r: newReader(nc), w: redcon.NewWriter(nc), authed: s.cfg.Password == "", resp: 2}
		s.mu.Lock()
		switch {
		case s.stopping:
			nc.Close()
		case len(s.conns) >= s.cfg.MaxConns:
			_, _ = io.WriteString(nc, "-ERR max number of clients reached\r\n")
			nc.Close()
		default:
			s.conns[c] = true
			s.wg.Go(c.serve)
		}
		s.mu.Unlock()
	}
}

// setIdle says whether c waits for a command; false when it must end instead.
func (s *Server) setIdle(c *conn, idle bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = idle
	return !s.stopping
}

// conn is one client.
type conn struct {
	net.Conn
	s      *Server
	r      *reader
	w      *redcon.Writer
	authed bool
	resp   int // 2 or 3
	space  int // index among the spaces
	name   string
}

func (c *conn) serve() {
	defer func() {
		c.Close()
		c.s.mu.Lock()
		delete(c.s.conns, c)
		c.s.mu.Unlock()
	}()
	for {
		if !c.r.buffered() {
			if err := c.flush(); err != nil {
				return
			}
			if !c.s.setIdle(c, true) {
				return
			}
			_ = c.SetReadDeadline(time.Time{})
			if _, err := c.r.br.Peek(1); err != nil {
				return
			}
			if !c.s.setIdle(c, false) {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(c.s.cfg.MaxWait))
		}
		args, err := c.r.command()
		if err != nil {
			var pe *protocolError
			if errors.As(err, &pe) {
				c.w.WriteError("ERR " + pe.Error())
				_ = c.flush()
			}
			return
		}
		if len(args) > 0 && !c.do(args) {
			_ = c.flush()
			return
		}
		if len(c.w.Buffer()) > 64<<10 {
			if err := c.flush(); err != nil {
				return
			}
		}
	}
}

func (c *conn) flush() error {
	if len(c.w.Buffer()) == 0 {
		return nil
	}
	_ = c.SetWriteDeadline(time.Now().Add(c.s.cfg.MaxWait))
	return c.w.Flush()
}
