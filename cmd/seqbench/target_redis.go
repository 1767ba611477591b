package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisTarget is a server that speaks the Redis protocol.
type redisTarget struct {
	ks  *keyset
	rdb *redis.Client
	// auto rides the calls of mode coalesced together; else nil.
	auto *redis.AutoPipeliner
}

func openRedis(ctx context.Context, c *config) (target, error) {
	redis.SetLogger(&logging.VoidLogger{}) // each call has its error
	r := &redisTarget{ks: newKeyset(c)}
	r.rdb = redis.NewClient(&redis.Options{
		Addr: c.servers[0], DB: c.db, PoolSize: max(c.callers, redisWorkers),
		DialTimeout: c.timeout, ReadTimeout: c.timeout, WriteTimeout: c.timeout,
		// An INCR that is sent again may count twice, which would look like a hole.
		MaxRetries:               -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	err := r.rdb.Ping(ctx).Err()
	if err != nil {
		err = fmt.Errorf("no Redis server answered at %s: %s: start one, or pass --server", c.servers[0], oneLine(err))
	} else if c.mode == modeCoalesced {
		if r.auto, err = r.rdb.AutoPipeline(); err != nil {
			err = fmt.Errorf("automatic pipelining: %w: use another --mode", err)
		}
	}
	if err != nil {
		r.rdb.Close()
		return nil, err
	}
	return r, nil
}

func (r *redisTarget) keys() *keyset  { return r.ks }
func (r *redisTarget) caller() caller { return redisCaller{r} }
func (r *redisTarget) bulk() caller   { return redisCaller{r} }

func (r *redisTarget) current(ctx context.Context, keys []int, into []uint64) error {
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = r.ks.text(k)
	}
	values, err := r.rdb.MGet(ctx, texts...).Result()
	if err != nil {
		return err
	}
	if len(values) != len(keys) {
		return errShortReply
	}
	for i, v := range values {
		if into[i] = 0; v == nil {
			continue
		}
		if into[i], err = strconv.ParseUint(fmt.Sprint(v), 10, 64); err != nil {
			return fmt.Errorf("key %s has %q, which is no counter: choose other keys with --first-key, or another --db", texts[i], v)
		}
	}
	return nil
}

func (r *redisTarget) close() error {
	if r.auto != nil {
		return errors.Join(r.auto.Close(), r.rdb.Close())
	}
	return r.rdb.Close()
}

type redisCaller struct{ r *redisTarget }

func (a redisCaller) alloc(keys []int, into []number) {
	ctx := context.Background()
	if len(keys) == 1 {
		text := a.r.ks.text(keys[0])
		if a.r.auto != nil {
			into[0] = incremented(a.r.auto.Incr(ctx, text))
		} else {
			into[0] = incremented(a.r.rdb.Incr(ctx, text))
		}
		return
	}
	p := a.r.rdb.Pipeline()
	cmds := make([]*redis.IntCmd, len(keys))
	for i, k := range keys {
		cmds[i] = p.Incr(ctx, a.r.ks.text(k))
	}
	_, _ = p.Exec(ctx) // each command has its own error
	for i, c := range cmds {
		into[i] = incremented(c)
	}
}

// incremented reads what an INCR brought. Any failure counts as of unknown
// outcome: a server may forward the command, and not know what became of it.
func incremented(c *redis.IntCmd) number {
	v, err := c.Result()
	if err != nil {
		return number{err: err, unknown: true}
	}
	return number{seq: uint64(v)}
}
