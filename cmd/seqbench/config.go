package main

import (
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/seqsvr/seqsvr/internal/cli"
)

const (
	defaultServer = "127.0.0.1:7100"
	defaultRedis  = "127.0.0.1:6379"
)

const (
	targetNative = "native"
	targetGRPC   = "grpc"
	targetRedis  = "redis"
	targetHTTP   = "http"
	targetInproc = "inproc"

	modeSingle    = "single"
	modeBatch     = "batch"
	modeCoalesced = "coalesced"

	distUniform = "uniform"
	distZipf    = "zipf"
)

var (
	targetNames = []string{targetNative, targetGRPC, targetRedis, targetInproc, targetHTTP}
	modeNames   = []string{modeSingle, modeBatch, modeCoalesced}
	distNames   = []string{distUniform, distZipf}
	outputNames = []string{"table", "json"}
)

// Limits that keep memory and the number of goroutines in bounds.
const (
	callersMax = 10_000
	// batchMax is what a server takes in one request.
	batchMax = 10_000
	// keysMax and keysVerifiedMax: verification costs 32 bytes a key.
	keysMax         = 1 << 30
	keysVerifiedMax = 1 << 24
)

// sampleEvery is how many calls of target inproc there are for each whose
// latency is taken: reading the clock twice costs more than such a call.
const sampleEvery = 64

// config is what to do, as asked for. check completes it.
type config struct {
	target, server, mode, dist, space, histogram, output string

	callers, batch, keys, db  int
	firstKey, seed            uint64
	duration, warmup, timeout time.Duration
	// rate is in allocations a second; 0 for as fast as it goes.
	rate            float64
	touch, noVerify bool

	serverGiven, batchGiven bool
	// servers is server, split.
	servers []string
}

func (c *config) check() error {
	for _, f := range []struct {
		flag, value string
		want        []string
	}{{"target", c.target, targetNames}, {"mode", c.mode, modeNames}, {"dist", c.dist, distNames}, {"output", c.output, outputNames}} {
		if !slices.Contains(f.want, f.value) {
			return cli.Usagef("--%s %q: want one of %s", f.flag, f.value, strings.Join(f.want, ", "))
		}
	}
	for _, f := range []struct {
		flag       string
		value, max int
	}{{"callers", c.callers, callersMax}, {"batch", c.batch, batchMax}, {"keys", c.keys, keysMax}} {
		if f.value < 1 || f.value > f.max {
			return cli.Usagef("--%s %d: want 1 to %d", f.flag, f.value, f.max)
		}
	}
	switch {
	case c.target == targetHTTP:
		return cli.Usagef("--target http is not available yet: use native, grpc or redis")
	case c.mode == modeCoalesced && (c.target == targetGRPC || c.target == targetInproc):
		return cli.Usagef("--mode coalesced: --target %s sends each call by itself: use native or redis", c.target)
	case c.batchGiven && c.mode != modeBatch:
		return cli.Usagef("--batch is for --mode batch: add it, or leave --batch out")
	case !c.noVerify && c.keys > keysVerifiedMax:
		return cli.Usagef("--keys %d: at most %d can be verified: add --no-verify", c.keys, keysVerifiedMax)
	case c.firstKey > math.MaxInt64:
		return cli.Usagef("--first-key %d: want at most %d", c.firstKey, math.MaxInt64)
	case c.duration <= 0:
		return cli.Usagef("--duration %v: want more than nothing, like 10s", c.duration)
	case c.warmup < 0:
		return cli.Usagef("--warmup %v: want nothing or more, like 2s", c.warmup)
	case c.timeout <= 0:
		return cli.Usagef("--timeout %v: want more than nothing, like 5s", c.timeout)
	case c.rate < 0 || math.IsNaN(c.rate) || math.IsInf(c.rate, 0):
		return cli.Usagef("--rate %v: want allocations a second, or 0 for as fast as it goes", c.rate)
	case c.db < 0 || c.db > 0 && c.target != targetRedis:
		return cli.Usagef("--db %d: want a database's number, and --target redis", c.db)
	case c.space == "":
		return cli.Usagef("--space is empty: want the name of a space, like uid or conv")
	}
	if c.mode != modeBatch {
		c.batch = 1
	}
	return c.checkServers()
}

func (c *config) checkServers() error {
	if c.target == targetInproc {
		if c.serverGiven {
			return cli.Usagef("--server: --target inproc has its own cluster: leave it out")
		}
		return nil
	}
	if !c.serverGiven {
		c.server = defaultRedis
		if c.target != targetRedis {
			if c.server = serverFromEnvironment(); c.server == "" {
				c.server = defaultServer
			}
		}
	}
	c.servers = nil
	for _, s := range strings.Split(c.server, ",") {
		s = strings.TrimSpace(s)
		if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
			return cli.Usagef("--server %q: want HOST:PORT[,HOST:PORT…]", s)
		}
		c.servers = append(c.servers, s)
	}
	if len(c.servers) > 1 && c.target != targetNative {
		return cli.Usagef("--server %s: --target %s calls one server: name one", c.server, c.target)
	}
	return nil
}

// sampling is how many calls there are for each whose latency is taken.
func (c *config) sampling() int {
	if c.target == targetInproc && c.mode == modeSingle && c.rate == 0 {
		return sampleEvery
	}
	return 1
}
