package sim

import (
	"context"
	"errors"
	"strings"

	"github.com/seqsvr/seqsvr/chaos/history"
	"github.com/seqsvr/seqsvr/chaos/load"
	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// transport is the SDK's way into the simulated network.
type transport struct {
	net  *Network
	from *process
	// starts: its connections can start calls, as those of lean frames can and others cannot.
	starts bool
}

func (t transport) Dial(addr string) (client.Conn, error) {
	c := clientConn{seqConn{t.net, t.from, addr}}
	if t.starts {
		return &startingConn{clientConn: c}, nil
	}
	return c, nil
}

// clientConn tells the SDK which calls were surely not executed.
type clientConn struct{ seqConn }

func notSent(err error) error {
	if errors.Is(err, ErrRefused) {
		return &wire.NotSent{Err: err}
	}
	return err
}

func (c clientConn) Alloc(ctx context.Context, req *seqpb.AllocRequest) (*seqpb.AllocReply, error) {
	rep, err := c.seqConn.Alloc(ctx, req)
	return rep, notSent(err)
}

func (c clientConn) Current(ctx context.Context, req *seqpb.CurrentRequest) (*seqpb.CurrentReply, error) {
	rep, err := c.seqConn.Current(ctx, req)
	return rep, notSent(err)
}

func (c clientConn) Gaps(ctx context.Context, req *seqpb.GapsRequest) (*seqpb.GapsReply, error) {
	rep, err := c.seqConn.Gaps(ctx, req)
	return rep, notSent(err)
}

func (c clientConn) GetRoutes(ctx context.Context, req *seqpb.RoutesRequest) (*seqpb.RouteTable, error) {
	rep, err := c.seqConn.GetRoutes(ctx, req)
	return rep, notSent(err)
}

func (c clientConn) WatchRoutes(ctx context.Context, req *seqpb.RoutesRequest) (client.RouteStream, error) {
	s, err := c.watch(ctx, req)
	if err != nil {
		return nil, notSent(err)
	}
	return s, nil
}

func (c clientConn) WatchKeys(ctx context.Context, req *seqpb.WatchKeysRequest) (client.KeyStream, error) {
	s, err := c.watchKeys(ctx, req)
	if err != nil {
		return nil, notSent(err)
	}
	return s, nil
}

// sdk is a client of the SDK as the workload wants it.
type sdk struct{ c *client.Client }

var _ load.Target = sdk{}

func keyOf(text string) client.Key {
	space, name, _ := strings.Cut(text, "/")
	return client.In(space, name)
}

// failed says what a caller may conclude from the SDK's error.
func failed(err error) history.Op {
	var e *client.Error
	if !errors.As(err, &e) {
		return history.Op{Outcome: history.Unknown, Err: "unclassified"}
	}
	op := history.Op{Outcome: history.Failed, Err: strings.ReplaceAll(e.Kind.Error(), " ", "_")}
	if e.Kind == client.KindUnknownResult {
		op.Outcome = history.Unknown
	}
	return op
}

func answered(r client.Result) history.Op {
	op := history.Op{Outcome: history.OK, First: r.First, Count: uint32(r.Count), Replayed: r.Replayed}
	if r.Discontinuity != nil {
		op.HoleFrom, op.HoleTo = r.Discontinuity.From, r.Discontinuity.To
	}
	return op
}

func (s sdk) Alloc(ctx context.Context, r load.Request) history.Op {
	var opts []client.CallOption
	if !r.ID.IsZero() {
		opts = append(opts, client.WithRequestID(r.ID))
	}
	res, err := s.c.AllocN(ctx, keyOf(r.Key), int64(r.N), opts...)
	if err != nil {
		return failed(err)
	}
	return answered(res)
}

func (s sdk) AllocMany(ctx context.Context, rs []load.Request) []history.Op {
	reqs := make([]client.Request, len(rs))
	for i, r := range rs {
		reqs[i] = client.Request{Key: keyOf(r.Key), N: int64(r.N), RequestID: r.ID}
	}
	results, err := s.c.AllocMany(ctx, reqs)
	out := make([]history.Op, len(rs))
	for i := range out {
		switch {
		case len(results) != len(rs):
			out[i] = failed(err)
		case results[i].Err != nil:
			out[i] = failed(results[i].Err)
		default:
			out[i] = answered(results[i])
		}
	}
	return out
}

func (s sdk) Current(ctx context.Context, keys []string) []history.Op {
	ks := make([]client.Key, len(keys))
	for i, k := range keys {
		ks[i] = keyOf(k)
	}
	readings, err := s.c.CurrentMany(ctx, ks)
	out := make([]history.Op, len(keys))
	for i := range out {
		switch {
		case len(readings) != len(keys):
			out[i] = failed(err)
		case readings[i].Err != nil:
			out[i] = failed(readings[i].Err)
		default:
			out[i] = history.Op{Outcome: history.OK, Value: readings[i].Current}
		}
	}
	return out
}

func (s sdk) Gaps(ctx context.Context, key string) ([]history.Gap, error) {
	gaps, err := s.c.Gaps(ctx, keyOf(key))
	if err != nil {
		return nil, err
	}
	out := make([]history.Gap, len(gaps))
	for i, g := range gaps {
		out[i] = history.Gap{Key: key, From: g.From, To: g.To, Cause: g.Cause}
	}
	return out, nil
}
