package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// createPause is between tries to make a Set known: its stores may have no leader yet.
const createPause = 50 * time.Millisecond

// createSets makes those of so many Sets that are beyond the first known to the directory.
func createSets(ctx context.Context, sets int, storesOf func(set string) []string) error {
	for n := 1; n < sets; n++ {
		if err := createSet(ctx, storesOf(setName(0)), setName(n), storesOf(setName(n))); err != nil {
			return err
		}
	}
	return nil
}

// createSet asks the directory's stores until the Set is in the map.
func createSet(ctx context.Context, directory []string, name string, stores []string) error {
	for {
		var last error
		for _, addr := range directory {
			if last = tryCreateSet(ctx, addr, name, stores); last == nil {
				return nil
			}
		}
		t := time.NewTimer(createPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("set %s cannot be made known to the directory: %w", name, errors.Join(last, ctx.Err()))
		}
	}
}

func tryCreateSet(ctx context.Context, addr, name string, stores []string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	conn, err := rpc.DialSetAdmin(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	list, err := conn.SetList(ctx, &seqpb.SetListRequest{})
	if err != nil {
		return err
	}
	for _, s := range list.Sets {
		if s.Name == name {
			return nil
		}
	}
	rep, err := conn.SetCreate(ctx, &seqpb.SetCreateRequest{Name: name, Stores: stores})
	if err != nil {
		return err
	}
	if r := rep.Refusal; r.GetCode() != seqpb.RefusalCode_REFUSAL_NONE {
		return errors.New(r.Message)
	}
	return nil
}
