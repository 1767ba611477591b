package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// otherSetTimeout bounds what one Set may take to answer, so that a dead one does
// not hide the others.
const otherSetTimeout = 2 * time.Second

// addOtherSets completes the status of the Set that was asked by that of the
// cluster's others, and answers which of them could not be heard.
func (a *app) addOtherSets(ctx context.Context, rep *seqpb.StatusReply) (moves []moveJSON, unheard []string) {
	if rep.MapVersion <= 1 {
		// The Set map has never changed: there is one Set.
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*otherSetTimeout)
	defer cancel()
	list, err := a.sets(ctx)
	if err == nil {
		moves, err = a.movesUnderWay(ctx)
	}
	if err != nil {
		unheard = append(unheard, "the directory of Sets does not answer: "+
			"moves, and sets other than that of the server, are not shown, and no move goes on; are a majority of its stores running?")
	}
	var asked sync.WaitGroup
	var mu sync.Mutex
	for _, s := range list {
		if slices.ContainsFunc(rep.Sets, func(have *seqpb.SetStatus) bool { return have.Name == s.Name }) {
			continue
		}
		asked.Go(func() {
			st, err := setStatus(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				st = &seqpb.SetStatus{Name: s.Name, Ranges: s.Ranges}
				unheard = append(unheard, fmt.Sprintf("set %s: none of its stores (%s) answers: %v", s.Name, strings.Join(s.Stores, ", "), oneLine(err)))
			}
			rep.Sets = append(rep.Sets, st)
		})
	}
	asked.Wait()
	slices.SortFunc(rep.Sets, func(x, y *seqpb.SetStatus) int { return strings.Compare(x.Name, y.Name) })
	slices.Sort(unheard)
	return moves, unheard
}

// movesUnderWay asks any of the servers for the moves that are not over, once.
func (a *app) movesUnderWay(ctx context.Context) ([]moveJSON, error) {
	var last error
	for _, addr := range a.servers {
		var out []moveJSON
		last = callAt(ctx, addr, rpc.DialSetAdmin, "seqctl set status", func(ctx context.Context, conn *rpc.SetAdminConn) (*seqpb.Refusal, error) {
			ctx, cancel := context.WithTimeout(ctx, otherSetTimeout)
			defer cancel()
			rep, err := conn.SetMoves(ctx, &seqpb.SetMovesRequest{})
			for _, m := range rep.GetMoves() {
				if j := moveOf(m); j.underWay() {
					out = append(out, j)
				}
			}
			return rep.GetRefusal(), err
		})
		if last == nil {
			return out, nil
		}
	}
	return nil, last
}

// sets asks any of the servers for the cluster's Sets, once.
func (a *app) sets(ctx context.Context) ([]*seqpb.SetSummary, error) {
	var last error
	for _, addr := range a.servers {
		var rep *seqpb.SetListReply
		last = callAt(ctx, addr, rpc.DialSetAdmin, "seqctl set list", func(ctx context.Context, conn *rpc.SetAdminConn) (_ *seqpb.Refusal, err error) {
			ctx, cancel := context.WithTimeout(ctx, otherSetTimeout)
			defer cancel()
			rep, err = conn.SetList(ctx, &seqpb.SetListRequest{})
			return rep.GetRefusal(), err
		})
		if last == nil {
			return rep.Sets, nil
		}
	}
	return nil, last
}

func setStatus(ctx context.Context, s *seqpb.SetSummary) (*seqpb.SetStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, otherSetTimeout)
	defer cancel()
	errs := []error{errors.New("no store of it is known")}
	for i, addr := range s.Stores {
		if i == 0 {
			errs = nil
		}
		var rep *seqpb.StatusReply
		err := callAt(ctx, addr, rpc.DialAdmin, "seqctl nodes", func(ctx context.Context, conn *rpc.AdminConn) (_ *seqpb.Refusal, err error) {
			rep, err = conn.Status(ctx, &seqpb.StatusRequest{})
			return rep.GetRefusal(), err
		})
		if err == nil && len(rep.Sets) > 0 {
			return rep.Sets[0], nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
