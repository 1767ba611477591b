package node

import (
	"context"
	"errors"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/allocsvr/redis"
	"github.com/seqsvr/seqsvr/internal/buildinfo"
	"github.com/seqsvr/seqsvr/internal/httpd"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/rpc"
)

// AllocConfig of an Alloc.
type AllocConfig struct {
	allocsvr.Config
	// RPC is the port for clients, opened; Redis and HTTP are nil for none. All
	// are the Alloc's from the call on, also when it fails.
	RPC, Redis, HTTP net.Listener
	RedisPassword    string
	// Neighbours are the AllocSvrs of this process; nil for none.
	Neighbours      *Neighbours
	MaxMessageBytes int
	Pprof           bool
}

// Alloc is a running AllocSvr with its ports.
type Alloc struct {
	*allocsvr.Server
	rpc     *rpc.Server
	http    *httpd.Server
	redis   *redis.Server
	forward *forward
	admin   *adminForwarder
	sets    *setForwarder
	beside  *Neighbours
}

// StartAlloc starts and returns at once; see Server.Ready.
func StartAlloc(cfg AllocConfig) (_ *Alloc, err error) {
	a := &Alloc{}
	undo := newUndo()
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	undo.add(func() { closeAll(cfg.RPC, cfg.Redis, cfg.HTTP) })
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	warmed := make(chan struct{})
	go func() { defer close(warmed); rpc.WarmSession() }()
	defer func() { <-warmed }()
	cfg.Dial, cfg.DialPeer = dialStore, dialPeer
	cfg.Version = buildinfo.Get().String()
	if a.Server, err = allocsvr.Start(cfg.Config); err != nil {
		return nil, err
	}
	undo.add(a.Server.Kill)
	if a.beside = cfg.Neighbours; a.beside == nil {
		a.beside = &Neighbours{}
	}
	a.beside.add(a.Server)
	undo.add(func() { a.beside.remove(a.Server) })
	a.admin = newAdminForwarder(a.Leader, cfg.Stores)
	a.sets = newSetForwarder(a.Leader, cfg.Stores)
	undo.add(func() { a.admin.close(); a.sets.close() })
	if a.rpc, err = rpc.Serve(cfg.RPC, rpc.Services{Seq: a.Server, Admin: a.admin, Peer: a.Server, SetAdmin: a.sets}, rpc.Options{MaxMessageBytes: cfg.MaxMessageBytes, Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	undo.add(func() { stopNow(a.rpc.Stop) })
	a.forward = newForward(cfg.Addr, cfg.Cluster, cfg.Logger)
	if cfg.Redis != nil {
		if a.redis, err = redis.Serve(cfg.Redis, redis.Config{
			Local: local{a.Server, a.beside}, Forward: a.forward, Spaces: a.spaces, Password: cfg.RedisPassword,
			Version: cfg.Version, Logger: cfg.Logger,
		}); err != nil {
			return nil, err
		}
		undo.add(func() { stopNow(a.redis.Stop) })
	}
	if cfg.HTTP != nil {
		if a.http, err = httpd.Serve(cfg.HTTP, httpd.Config{
			Ready: a.Ready, Collectors: []prometheus.Collector{a.Collector()}, Pprof: cfg.Pprof, Logger: cfg.Logger,
		}); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// spaces of the cluster, none while they are not known.
func (a *Alloc) spaces() []ids.Space {
	if t := a.Routes().Load(); t != nil {
		return t.Spaces
	}
	return nil
}

// Stop hands everything back, sends callers on meanwhile, and closes the ports.
func (a *Alloc) Stop(ctx context.Context) error {
	a.beside.remove(a.Server)
	err := a.Server.Stop(ctx)
	if a.redis != nil {
		err = errors.Join(err, a.redis.Stop(ctx))
	}
	a.forward.close()
	err = errors.Join(err, a.rpc.Stop(ctx))
	a.admin.close()
	a.sets.close()
	if a.http != nil {
		err = errors.Join(err, a.http.Stop(ctx))
	}
	return err
}

// Kill ends as a crash would; the arena stays.
func (a *Alloc) Kill() {
	a.beside.remove(a.Server)
	stopNow(a.rpc.Stop)
	a.Server.Kill()
	if a.redis != nil {
		stopNow(a.redis.Stop)
	}
	a.forward.close()
	a.admin.close()
	a.sets.close()
	if a.http != nil {
		stopNow(a.http.Stop)
	}
}

// The hot calls of an AllocSvr are carried out where they are read.
var _ rpc.InlineSeq = (*allocsvr.Server)(nil)

// storeConn gives rpc.StoreConn the shape that package allocsvr asks for.
type storeConn struct{ *rpc.StoreConn }

func (c storeConn) Session(ctx context.Context) (allocsvr.SessionStream, error) {
	s, err := c.StoreConn.Session(ctx)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func dialStore(addr string) (allocsvr.StoreConn, error) {
	c, err := rpc.DialStore(addr)
	if err != nil {
		return nil, err
	}
	return storeConn{c}, nil
}

func dialPeer(addr string) (allocsvr.PeerConn, error) {
	c, err := rpc.DialPeer(addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}
