package allocsvr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/arena"
	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/allocsvr/session"
	"github.com/seqsvr/seqsvr/internal/lease"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// Server is one AllocSvr.
type Server struct {
	cfg     Config
	log     *zap.Logger
	arena   *arena.Arena
	session *session.Session
	queue   *raise.Queue
	window  *dedupe.Table
	hub     *router.Hub
	// world is nil until the first Welcome. It is replaced by the session's goroutine only.
	world atomic.Pointer[world]
	// previous is what a dead process left in the arena, until it is resumed or
	// dropped. The session's goroutine's own.
	previous arena.Identity

	door    *door
	news    bell // something about sections, routes or the lease changed
	line    line
	waiting atomic.Int64
	watched atomic.Int64 // keys, of all subscriptions
	// watchReads holds a token while a subscription reads keys that are not held.
	watchReads chan struct{}
	forgotten  forgotten
	count      counters
	load       loadBook

	leaving atomic.Bool
	ended   chan struct{} // the leader said goodbye
	endOnce sync.Once
	dying   chan struct{} // callers that wait are let go
	dieOnce sync.Once
	down    chan struct{} // everything is stopped
	failed  chan error
	cancel  context.CancelFunc // of the background goroutines
	wg      sync.WaitGroup

	mu      sync.Mutex
	failure error
}

var _ seqpb.Seq = (*Server)(nil)

// routesFile is the route cache in Config.DataDir.
const routesFile = "routes"

// Start makes an AllocSvr and returns at once; it serves as soon as the leader
// of its Set gave it sections. An error means that it cannot run as configured.
func Start(cfg Config) (*Server, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	log := cfg.Logger.With(zap.String("node", cfg.Node))
	s := &Server{
		cfg: cfg, log: log, door: newDoor(), watchReads: make(chan struct{}, 1),
		ended: make(chan struct{}), dying: make(chan struct{}), down: make(chan struct{}), failed: make(chan error, 1),
	}
	table, err := s.cachedRoutes()
	if err != nil {
		return nil, err
	}
	s.hub = router.NewHub(table)
	s.arena, err = arena.Open(arena.Options{
		Path: cfg.ArenaPath, Cluster: cfg.Cluster, Node: cfg.Node, MaxBytes: cfg.ArenaMaxBytes,
		BootID: cfg.BootID, Region: cfg.Region, Logger: log, Bugs: cfg.Bugs.Arena,
	})
	if err != nil {
		return nil, fmt.Errorf("allocsvr %s: %w", cfg.Node, err)
	}
	s.window = dedupe.New(dedupe.Options{Arena: s.arena, EntriesMax: cfg.WindowEntriesMax, Window: cfg.Window, Logger: log})
	s.previous, err = s.arena.Previous()
	if err != nil {
		s.previous = arena.Identity{}
		if !errors.Is(err, arena.ErrNone) {
			log.Warn("arena of an earlier process is not used; a new session starts empty", zap.Error(err))
		}
	}
	s.session = session.New(session.Config{
		Peer: session.Peer{
			Node: cfg.Node, Cluster: cfg.Cluster, Addr: cfg.Addr, RedisAddr: cfg.RedisAddr, HTTPAddr: cfg.HTTPAddr, Version: cfg.Version,
		},
		Stores: cfg.Stores, Dial: cfg.Dial, Handler: handler{s}, Clock: cfg.Clock, Logger: log, Jitter: cfg.Jitter,
		Resume: session.Identity{ClusterID: s.previous.ClusterID, Session: s.previous.Session, Incarnation: s.previous.Incarnation},
		Bugs:   lease.Bugs{IgnoreLease: cfg.Bugs.IgnoreLease},
	})
	s.queue = raise.NewQueue(raise.Config{Executor: s.session, Logger: log, Jitter: cfg.Jitter})
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if cfg.DataDir != "" {
		s.wg.Go(func() { s.saveRoutes(ctx, table) })
	}
	s.session.Start()
	return s, nil
}

// cachedRoutes is what the cache file has; nil if it has nothing of use.
func (s *Server) cachedRoutes() (*router.Table, error) {
	if s.cfg.DataDir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(s.cfg.DataDir, 0o755); err != nil {
		return nil, fmt.Errorf("allocsvr %s: data directory: %w", s.cfg.Node, err)
	}
	t, err := router.Load(filepath.Join(s.cfg.DataDir, routesFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case err != nil:
		s.log.Warn("starting without cached routes", zap.Error(err))
		return nil, nil
	case t.Cluster != s.cfg.Cluster:
		return nil, fmt.Errorf("allocsvr %s: data directory %s is of cluster %q, not %q: give this node a directory of its own",
			s.cfg.Node, s.cfg.DataDir, t.Cluster, s.cfg.Cluster)
	}
	return t, nil
}

// saveRoutesEvery is how often the routes are saved at most. In a planned move they
// change a hundred times a second, and each saving is an fsync on what may be the
// disk of a StoreSvr's log; a table that is a little older is only slower to start with.
const saveRoutesEvery = 500 * time.Millisecond

// saveRoutes keeps the newest table in the cache file. It is never older than
// what was saved before, since the hub never goes back.
func (s *Server) saveRoutes(ctx context.Context, saved *router.Table) {
	if saved == nil {
		saved = s.hub.Load()
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for ctx.Err() == nil {
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		// When the process ends, the last one is saved too.
		t, err := s.hub.Wait(ctx, saved)
		if err != nil {
			if t = s.hub.Load(); t == saved {
				return
			}
		}
		if err := router.Save(filepath.Join(s.cfg.DataDir, routesFile), t); err != nil {
			s.log.Warn("routes not saved", zap.Error(err))
		}
		saved = t
		pause.Reset(saveRoutesEvery)
	}
}

// Routes is the hub of the newest routes that this node knows.
func (s *Server) Routes() *router.Hub { return s.hub }

// Leader is the RPC address of the Set's leader; "" while none is known.
func (s *Server) Leader() string { return s.session.Leader() }

func (s *Server) closed() bool {
	select {
	case <-s.dying:
		return true
	default:
		return false
	}
}

// Stop hands everything back and ends. While it does, and for StopLinger
// after, callers are told who serves instead. If no leader takes the sections
// within StopTimeout (or ctx), it ends all the same and keeps the arena, from
// which the next process resumes; that is the error it returns then.
func (s *Server) Stop(ctx context.Context) error {
	s.leaving.Store(true)
	if s.world.Load() == nil {
		// Nothing was served. What a process before this one left stays in the arena.
		return s.shutdown(false)
	}
	s.session.Leave("stop")
	err := s.awaitGoodbye(ctx)
	return errors.Join(err, s.shutdown(err == nil))
}

func (s *Server) awaitGoodbye(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopTimeout)
	defer cancel()
	select {
	case <-s.ended:
	case <-s.down:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sections not handed back (%w); the arena is kept, restart this node on the same machine to lose no number", ctx.Err())
	}
	linger := time.NewTimer(s.cfg.StopLinger)
	defer linger.Stop()
	select {
	case <-linger.C:
	case <-ctx.Done():
	}
	return nil
}

// Kill ends at once and says nothing to anybody, as a crash would. The arena stays.
func (s *Server) Kill() { _ = s.shutdown(false) }

func (s *Server) shutdown(removeArena bool) (err error) {
	s.dieOnce.Do(func() {
		close(s.dying)
		s.cancel()
		s.session.Close()
		s.queue.Close()
		s.closeWorld()
		s.hub.Close()
		s.wg.Wait()
		err = s.arena.Close(removeArena)
		close(s.down)
	})
	<-s.down
	return err
}
