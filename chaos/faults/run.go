package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/chaos/history"
)

// Config of a run.
type Config struct {
	// Names of the faults to draw from; each must be one that Plan allows.
	Names []string
	Seed  uint64
	// Calm is how long the cluster is left alone between two faults; 0 means 2 s.
	Calm time.Duration
	// Count ends the run after so many faults; 0: when the context is done.
	Count  int
	Logger *zap.Logger
}

// liftTimeout is how long lifting a fault may take once the run is over.
const liftTimeout = 30 * time.Second

// run is one run over one cluster.
type run struct {
	// running ends with the run; ctx outlives it, so that what was broken is mended.
	running, ctx context.Context
	c            Cluster
	rec          *history.Recorder
	rng          *rand.Rand
	// half is the number of the Set that has the half of the keys which is moved about.
	half int
}

// Run injects faults until the context is done, and returns with all of them
// lifted. Each kind comes up once before any comes up again.
func Run(ctx context.Context, cfg Config, c Cluster, rec *history.Recorder) error {
	if cfg.Calm == 0 {
		cfg.Calm = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if _, skipped, err := Plan(cfg.Names, len(c.Sets())); err != nil || len(skipped) > 0 {
		return errors.Join(err, fmt.Errorf("faults that cannot be injected: %v", skipped))
	}
	r := &run{running: ctx, c: c, rec: rec, rng: rand.New(rand.NewPCG(cfg.Seed, 1))}
	var bag []string
	for done := 0; len(cfg.Names) > 0 && (cfg.Count == 0 || done < cfg.Count); done++ {
		if !wait(ctx, cfg.Calm) {
			break
		}
		if len(bag) == 0 {
			bag = slices.Clone(cfg.Names)
			r.rng.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		name := bag[0]
		bag = bag[1:]
		if err := r.one(kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })], cfg.Logger); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) one(k kind, logger *zap.Logger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.running), liftTimeout+3*r.c.LeaseTTL())
	defer cancel()
	r.ctx = ctx
	node, err := k.target(r)
	if err != nil {
		return fmt.Errorf("fault %s: %w", k.name, err)
	}
	logger.Info("fault begins", zap.String("fault", k.name), zap.String("node", node))
	end := r.rec.Fault(history.Fault{Name: k.name, Node: node, Losses: k.losses, Planned: k.planned})
	err = k.strike(r, node)
	end()
	logger.Info("fault is lifted", zap.String("fault", k.name), zap.String("node", node), zap.Error(err))
	if err != nil {
		return fmt.Errorf("fault %s on %s: %w", k.name, node, err)
	}
	return nil
}
