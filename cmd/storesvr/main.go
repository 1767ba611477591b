// storesvr is one node of a Set's durable tier.
package main

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/config"
	"github.com/seqsvr/seqsvr/internal/node"
	"github.com/seqsvr/seqsvr/storesvr"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

func main() {
	c := &config.StoreSvr{}
	cli.Main(cli.Server("storesvr", "Run one StoreSvr: a member of a Set's Raft group", example, c, &c.Log, &c.StopTimeout,
		func(log *zap.Logger) (*cli.Running, error) { return start(c, log) }))
}

const example = `  storesvr --config /etc/seqsvr/storesvr.yaml
  storesvr --config storesvr.yaml --check-config
  storesvr --node s1 --data /var/lib/seqsvr/s1 --bootstrap \
    --rpc-listen 10.0.0.1:7110 --raft-listen 10.0.0.1:7120 --http-listen 10.0.0.1:7190 \
    --peers s1=10.0.0.1:7120/10.0.0.1:7110,s2=10.0.0.2:7120/10.0.0.2:7110,s3=10.0.0.3:7120/10.0.0.3:7110`

func start(c *config.StoreSvr, log *zap.Logger) (*cli.Running, error) {
	lns, err := cli.Listen(c.RPCListen, c.HTTPListen)
	if err != nil {
		return nil, err
	}
	cfg := node.StoreConfig{
		Config: storesvr.Config{
			ID: c.Node, Cluster: c.Cluster, Set: c.Set, ClusterID: c.ClusterID,
			RPCAddr: c.RPCAdvertise, RaftAddr: c.RaftAdvertise, HTTPAddr: cli.Advertised(lns[1], c.HTTPAdvertise),
			Bootstrap: c.Bootstrap, Sections: c.Sections, Spaces: c.SpaceList,
			Directory: c.Directory, FreezeTimeout: c.FreezeTimeout, PartKeys: c.PartKeys,
			LeaseTTL: c.LeaseTTL, RaftTimeout: c.RaftTimeout,
			SnapshotThreshold: c.SnapshotThreshold, TrailingLogs: c.TrailingLogs, Logger: log,
		},
		Dir: c.Data, RaftListen: c.RaftListen, RPC: lns[0], HTTP: lns[1],
		MaxMessageBytes: c.MaxMessageBytes, Pprof: c.Pprof, LogDelay: c.TestLogDelay,
	}
	for _, p := range c.PeerList {
		cfg.Peers = append(cfg.Peers, state.StoreNode{ID: p.ID, RaftAddr: p.RaftAddr, RPCAddr: p.RPCAddr, HTTPAddr: p.HTTPAddr})
	}
	n, err := node.StartStore(cfg)
	if err != nil {
		return nil, err
	}
	return &cli.Running{
		Ready: n.Ready, Failed: n.Failed(), Stop: n.Stop,
		ReadyLine: fmt.Sprintf("node=%s rpc=%s raft=%s http=%s", c.Node, c.RPCAdvertise, c.RaftAdvertise, cfg.HTTPAddr),
	}, nil
}
