// allocsvr is one node of a Set's serving tier.
package main

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/config"
	"github.com/seqsvr/seqsvr/internal/node"
)

// stopMargin is what closing the ports may take beyond handing back.
const stopMargin = 5 * time.Second

func main() {
	c := &config.AllocSvr{}
	var stopTimeout time.Duration
	cli.Main(cli.Server("allocsvr", "Run one AllocSvr: it serves numbers from memory", example, c, &c.Log, &stopTimeout,
		func(log *zap.Logger) (*cli.Running, error) {
			stopTimeout = c.StopTimeout + c.StopLinger + stopMargin
			return start(c, log)
		}))
}

const example = `  allocsvr --config /etc/seqsvr/allocsvr.yaml
  allocsvr --config allocsvr.yaml --check-config
  allocsvr --node a1 --rpc-listen 10.0.0.1:7100 --http-listen 10.0.0.1:7180 \
    --stores 10.0.0.1:7110,10.0.0.2:7110,10.0.0.3:7110`

// orNever is how the configuration's 0 is said to package allocsvr.
func orNever[T ~int | ~int64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func start(c *config.AllocSvr, log *zap.Logger) (*cli.Running, error) {
	lns, err := cli.Listen(c.RPCListen, c.RedisListen, c.HTTPListen)
	if err != nil {
		return nil, err
	}
	cfg := node.AllocConfig{
		Config: allocsvr.Config{
			Node: c.Node, Cluster: c.Cluster,
			Addr:      cli.Advertised(lns[0], c.RPCAdvertise),
			RedisAddr: cli.Advertised(lns[1], c.RedisAdvertise),
			HTTPAddr:  cli.Advertised(lns[2], c.HTTPAdvertise),
			Stores:    c.Stores, ArenaPath: c.Arena, ArenaMaxBytes: int64(c.ArenaMaxMB) << 20, DataDir: c.Data,
			IdleAfter: orNever(c.IdleAfter), ArenaHighWater: orNever(c.ArenaHighWater),
			Steps: c.Steps.Rule(), Spaces: c.SpaceSettings, Window: c.Requests.Window, WindowEntriesMax: c.Requests.EntriesMax,
			MaxN: c.MaxN, MaxBatchKeys: c.MaxBatchKeys, MaxInFlight: c.MaxInFlight, MaxWatchedKeys: c.MaxWatchedKeys,
			StopLinger: c.StopLinger, StopTimeout: c.StopTimeout, Logger: log,
		},
		RPC: lns[0], Redis: lns[1], HTTP: lns[2],
		RedisPassword: c.RedisPassword, MaxMessageBytes: c.MaxMessageBytes, Pprof: c.Pprof,
	}
	n, err := node.StartAlloc(cfg)
	if err != nil {
		return nil, err
	}
	return &cli.Running{
		Ready: n.Ready, Failed: n.Failed(), Stop: n.Stop,
		ReadyLine: fmt.Sprintf("node=%s listen=%s redis=%s http=%s", c.Node, cfg.Addr, cfg.RedisAddr, cfg.HTTPAddr),
	}, nil
}
