package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/chaos/faults"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cluster"
)

// fleet is a cluster of processes under test.
type fleet struct {
	faults.Cluster
	p      *cluster.Processes
	client *client.Client
}

type fleetOptions struct {
	stores, allocs int
	redis          bool
	settings       func(node string) map[string]string
}

const leaseTTL = 2 * time.Second

func startFleet(t *testing.T, o fleetOptions) *fleet {
	t.Helper()
	for _, name := range []string{"storesvr", "allocsvr"} {
		program(t, name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), readyWithin)
	defer cancel()
	begin := time.Now()
	p, err := cluster.StartProcesses(ctx, cluster.ProcessOptions{
		Bin: binDir, Dir: t.TempDir(), Stores: o.stores, Allocs: o.allocs, Redis: o.redis, LeaseTTL: leaseTTL, LogLevel: "info", Settings: o.settings,
	})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			p.Logs(t.Output(), 4<<10)
		}
		p.Stop()
	})
	t.Logf("%d storesvr and %d allocsvr processes ready after %v", o.stores, o.allocs, time.Since(begin).Round(time.Millisecond))
	return &fleet{Cluster: faults.Processes(p, leaseTTL), p: p, client: dialClient(t, p.Addrs()...)}
}

// targets are n clients with connections of their own.
func (f *fleet) targets(t *testing.T, n int) []load.Target {
	t.Helper()
	return dial(t, n, f.p.Addrs()...)
}

func (f *fleet) process(node string) *cluster.Process {
	for _, ps := range [][]*cluster.Process{f.p.Allocs, f.p.Stores} {
		for _, p := range ps {
			if p.ID == node {
				return p
			}
		}
	}
	panic(fmt.Sprintf("no node %q", node))
}

// doors are all addresses that the nodes listen on.
func (f *fleet) doors() []door {
	a, s := f.p.Allocs[0], f.p.Stores[0]
	return []door{
		{name: "allocsvr", addr: a.RPCAddr, grpc: true},
		{name: "allocsvr redis", addr: a.RedisAddr},
		{name: "allocsvr http", addr: a.HTTPAddr},
		{name: "storesvr", addr: s.RPCAddr, grpc: true},
		{name: "storesvr raft", addr: s.RaftAddr},
		{name: "storesvr http", addr: s.HTTPAddr},
	}
}
