package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/cli"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// target is what is measured.
type target interface {
	// keys of the run; the target may have chosen them.
	keys() *keyset
	// caller is for one goroutine.
	caller() caller
	// bulk is for one goroutine too. It takes up to bulkKeys keys and is not measured.
	bulk() caller
	// current reads the last numbers issued, of up to bulkKeys keys.
	current(ctx context.Context, keys []int, into []uint64) error
	close() error
}

// bulkKeys is how many keys are read or touched at a time, at most.
const bulkKeys = 1000

// caller makes one call: a number for each of keys, into the entry of the same index.
type caller interface {
	alloc(keys []int, into []number)
}

// number is what one key got.
type number struct {
	seq uint64
	// hole: numbers before seq were declared as possibly never issued.
	hole bool
	// err: nothing was got; with unknown it may have been issued nevertheless.
	err     error
	unknown bool
}

func fail(into []number, err error, unknown bool) {
	for i := range into {
		into[i] = number{err: err, unknown: unknown}
	}
}

func openTarget(ctx context.Context, c *config) (target, error) {
	switch c.target {
	case targetNative:
		return openNative(ctx, c)
	case targetGRPC:
		return openGRPC(ctx, c)
	case targetRedis:
		return openRedis(ctx, c)
	case targetInproc:
		return openInproc(ctx, c)
	}
	return nil, cli.Usagef("--target %s is not available: see --help", c.target)
}

// unknownOutcome: a failed call may have been carried out. The errors of the
// tiers say what is definite with SeqCode.
func unknownOutcome(err error) bool {
	var coded interface{ SeqCode() seqpb.Code }
	return !errors.As(err, &coded) || coded.SeqCode() == seqpb.Code_CODE_UNKNOWN_RESULT
}

func dialSDK(ctx context.Context, c *config, opts ...client.Option) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cl, err := client.Dial(ctx, c.servers, append(opts, client.WithBudget(c.timeout))...)
	if err != nil {
		return nil, fmt.Errorf("no seqsvr answered at %s: %s: start one with \"seqsvr dev\" or pass --server", strings.Join(c.servers, ", "), oneLine(err))
	}
	return cl, nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// kindOfSpace sets whether the keys are names, as the cluster has it.
func kindOfSpace(cl *client.Client, c *config, ks *keyset) error {
	space, ok := cl.Routes().Space(c.space)
	if !ok {
		var names []string
		for _, s := range cl.Routes().Spaces {
			names = append(names, s.Name)
		}
		return cli.Usagef("there is no space %q: the cluster has %s", c.space, strings.Join(names, ", "))
	}
	return fits(space, c, ks)
}

// fits refuses keys that the space does not have, before any is asked for.
func fits(space ids.Space, c *config, ks *keyset) error {
	ks.names = space.Kind == ids.KindName
	if last := c.firstKey + uint64(c.keys) - 1; !ks.names && last > space.MaxUID {
		return cli.Usagef("--first-key %d --keys %d: the last key is above %d, the largest of space %s: use less", c.firstKey, c.keys, space.MaxUID, space.Name)
	}
	return nil
}

// sdkCurrent reads by the SDK.
func sdkCurrent(ctx context.Context, cl *client.Client, key func(int) client.Key, keys []int, into []uint64) error {
	asked := make([]client.Key, len(keys))
	for i, k := range keys {
		asked[i] = key(k)
	}
	readings, err := cl.CurrentMany(ctx, asked)
	if err != nil {
		return err
	}
	for i, r := range readings {
		into[i] = uint64(r.Current)
	}
	return nil
}
