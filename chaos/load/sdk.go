package load

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/client"
)

// SDK is a client of the Go SDK as a Target.
func SDK(c *client.Client) Target { return sdk{c} }

type sdk struct{ c *client.Client }

// Key is the SDK's key of "SPACE/TEXT".
func Key(key string) client.Key {
	space, text, _ := strings.Cut(key, "/")
	return client.In(space, text)
}

func (s sdk) Alloc(ctx context.Context, r Request) history.Op {
	var opts []client.CallOption
	if !r.ID.IsZero() {
		opts = append(opts, client.WithRequestID(r.ID))
	}
	res, err := s.c.AllocN(ctx, Key(r.Key), int64(r.N), opts...)
	return answer(&res, err)
}

func (s sdk) AllocMany(ctx context.Context, rs []Request) []history.Op {
	reqs := make([]client.Request, len(rs))
	for i, r := range rs {
		reqs[i] = client.Request{Key: Key(r.Key), N: int64(r.N), RequestID: r.ID}
	}
	res, err := s.c.AllocMany(ctx, reqs)
	out := make([]history.Op, len(rs))
	for i := range out {
		if res == nil {
			out[i] = failure(err)
		} else {
			out[i] = answer(&res[i], res[i].Err)
		}
	}
	return out
}

func (s sdk) Current(ctx context.Context, keys []string) []history.Op {
	ks := make([]client.Key, len(keys))
	for i, k := range keys {
		ks[i] = Key(k)
	}
	res, err := s.c.CurrentMany(ctx, ks)
	out := make([]history.Op, len(keys))
	for i := range out {
		switch {
		case res == nil:
			out[i] = failure(err)
		case res[i].Err != nil:
			out[i] = failure(res[i].Err)
		default:
			out[i] = history.Op{Outcome: history.OK, Value: res[i].Current}
		}
	}
	return out
}

func (s sdk) Gaps(ctx context.Context, key string) ([]history.Gap, error) {
	gaps, err := s.c.Gaps(ctx, Key(key))
	if err != nil {
		return nil, fmt.Errorf("gaps of %s: %w", key, err)
	}
	out := make([]history.Gap, len(gaps))
	for i, g := range gaps {
		out[i] = history.Gap{Key: key, From: g.From, To: g.To, Cause: g.Cause}
	}
	return out, nil
}

func answer(r *client.Result, err error) history.Op {
	if err != nil {
		return failure(err)
	}
	o := history.Op{Outcome: history.OK, First: r.First, Count: uint32(r.Count), Replayed: r.Replayed}
	if !r.WindowSince.IsZero() {
		o.WindowSince = r.WindowSince.UnixNano()
	}
	if r.Discontinuity != nil {
		o.HoleFrom, o.HoleTo = r.Discontinuity.From, r.Discontinuity.To
	}
	return o
}

// failure says what may be concluded from an error: every kind but
// UnknownResult promises that nothing was allocated.
func failure(err error) history.Op {
	var e *client.Error
	switch {
	case !errors.As(err, &e), e.Kind == client.KindUnknownResult:
		return history.Op{Outcome: history.Unknown, Err: "unknown_result"}
	default:
		return history.Op{Outcome: history.Failed, Err: strings.ReplaceAll(e.Kind.Error(), " ", "_")}
	}
}
