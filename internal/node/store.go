package node

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/httpd"
	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr"
)

// StoreConfig of a Store.
type StoreConfig struct {
	storesvr.Config
	// Dir has the state.
	Dir string
	// RaftListen is the address to open for Raft.
	RaftListen string
	// RPC is the RPC port, opened; HTTP that of the admin server, nil for none.
	// Both are the Store's from the call on, also when it fails.
	RPC, HTTP net.Listener
	// OnRaft, if set, is told where Raft listens before it starts.
	OnRaft          func(net.Addr)
	MaxMessageBytes int
	Pprof           bool
	// LogDelay is for tests of slow disks: see storesvr.DelayWrites. Empty: none.
	LogDelay string
}

// Store is a running StoreSvr with its ports.
type Store struct {
	*storesvr.Node
	rpc  *rpc.Server
	http *httpd.Server
}

// StartStore opens the directory and starts.
func StartStore(cfg StoreConfig) (_ *Store, err error) {
	s := &Store{}
	undo := newUndo()
	defer func() {
		if err != nil {
			undo.run()
		}
	}()
	undo.add(func() { closeAll(cfg.RPC, cfg.HTTP) })
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.DialAdmin, cfg.DialSets, cfg.DialSetAdmin = dialAdmin, dialSets, dialSetAdmin
	st, err := storesvr.OpenDisk(cfg.Dir, cfg.Config)
	if err != nil {
		return nil, err
	}
	if cfg.LogDelay != "" {
		cfg.Logger.Warn("writes to the raft log are delayed as this file says: for tests only", zap.String("file", cfg.LogDelay))
		st = storesvr.DelayWrites(st, cfg.LogDelay)
	}
	tr, err := storesvr.NewTransport(cfg.Config, cfg.RaftListen)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if cfg.OnRaft != nil {
		cfg.OnRaft(tr.(*storesvr.Transport).Listens())
	}
	if s.Node, err = storesvr.Start(cfg.Config, st, tr); err != nil {
		return nil, err
	}
	undo.add(s.Node.Kill)
	if s.rpc, err = rpc.Serve(cfg.RPC, rpc.Services{
		Seq: s.Seq(), Store: s.Node, Admin: s.Node, Sets: s.Node, SetAdmin: s.Node,
	}, rpc.Options{MaxMessageBytes: cfg.MaxMessageBytes, Logger: cfg.Logger}); err != nil {
		return nil, err
	}
	if cfg.HTTP != nil {
		undo.add(func() { stopNow(s.rpc.Stop) })
		if s.http, err = httpd.Serve(cfg.HTTP, httpd.Config{
			Ready: s.Ready, Collectors: []prometheus.Collector{s.Collector()}, Pprof: cfg.Pprof, Logger: cfg.Logger,
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Stop hands leadership on, ends, and closes the ports.
func (s *Store) Stop(ctx context.Context) error {
	err := s.Node.Stop(ctx)
	err = errors.Join(err, s.rpc.Stop(ctx))
	if s.http != nil {
		err = errors.Join(err, s.http.Stop(ctx))
	}
	return err
}

// Kill ends as a crash would.
func (s *Store) Kill() {
	stopNow(s.rpc.Stop)
	s.Node.Kill()
	if s.http != nil {
		stopNow(s.http.Stop)
	}
}

// adminConn gives rpc.AdminConn the shape that package storesvr asks for.
type adminConn struct{ *rpc.AdminConn }

func (c adminConn) Drain(ctx context.Context, q *seqpb.DrainRequest) (storesvr.DrainStream, error) {
	w, err := c.AdminConn.Drain(ctx, q)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func dialAdmin(addr string) (storesvr.AdminConn, error) {
	c, err := rpc.DialAdmin(addr)
	if err != nil {
		return nil, fmt.Errorf("administration of %s: %w", addr, err)
	}
	return adminConn{c}, nil
}

func dialSets(addr string) (storesvr.SetsConn, error) {
	c, err := rpc.DialSets(addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func dialSetAdmin(addr string) (storesvr.SetAdminConn, error) {
	c, err := rpc.DialSetAdmin(addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}
