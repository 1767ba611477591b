package client

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/router"
)

// saveEvery is how often the cache file is written at most.
const saveEvery = time.Second

// loadCache is the saved table, or nil.
func loadCache(opts *options) *router.Table {
	if opts.cache == "" {
		return nil
	}
	t, err := router.Load(opts.cache)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		opts.logger.Warn("route cache not used", zap.Error(err))
		return nil
	case opts.cluster != "" && t.Cluster != opts.cluster:
		opts.logger.Warn("route cache not used: it is of another cluster",
			zap.String("path", opts.cache), zap.String("cluster", t.Cluster), zap.String("want", opts.cluster))
		return nil
	}
	return t
}

// runCache saves each newer table, but the first at once and others not too often.
func (r *routes) runCache(ctx context.Context, loaded *router.Table) {
	last := loaded
	for {
		t := r.hub.Load()
		if t != last {
			last = t
			if err := router.Save(r.opts.cache, t); err != nil {
				r.opts.logger.Warn("routes not saved", zap.Error(err))
			}
			pause := time.NewTimer(saveEvery)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		if _, err := r.hub.Wait(ctx, last); err != nil {
			break
		}
	}
	if t := r.hub.Load(); t != last {
		if err := router.Save(r.opts.cache, t); err != nil {
			r.opts.logger.Warn("routes not saved", zap.Error(err))
		}
	}
}
