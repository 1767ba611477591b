package client_test

import (
	"context"
	"io"
	"time"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// fakeKeys is a subscription that looks every 10 ms.
type fakeKeys struct {
	f    *fakeConn
	ctx  context.Context
	req  *seqpb.WatchKeysRequest
	told map[int]uint64
	gone map[int]bool
	idle int
}

func (f *fakeConn) WatchKeys(ctx context.Context, req *seqpb.WatchKeysRequest) (client.KeyStream, error) {
	if err := f.arrive(ctx); err != nil {
		return nil, err
	}
	f.n.c.mu.Lock()
	defer f.n.c.mu.Unlock()
	f.n.keyWatches++
	f.n.keysOpen++
	if f.n.refuse != nil {
		if err := f.n.refuse(texts(req.Uids, req.Names)); err != nil {
			f.n.keysOpen--
			return nil, err
		}
	}
	return &fakeKeys{f: f, ctx: ctx, req: req, told: map[int]uint64{}, gone: map[int]bool{}}, nil
}

func (s *fakeKeys) Close() error {
	s.f.n.c.mu.Lock()
	defer s.f.n.c.mu.Unlock()
	s.f.n.keysOpen--
	return nil
}

func (s *fakeKeys) Recv() (*seqpb.KeyValues, error) {
	for {
		m, end, err := s.look()
		if m != nil || err != nil {
			return m, err
		}
		if end {
			return nil, io.EOF
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
			return nil, s.ctx.Err()
		}
	}
}

func (s *fakeKeys) look() (m *seqpb.KeyValues, end bool, err error) {
	n, c := s.f.n, s.f.n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if n.down {
		return nil, false, io.ErrUnexpectedEOF
	}
	if n.stuck != nil {
		return nil, false, nil
	}
	sp, ok := c.table().Space(s.req.Space)
	if !ok {
		return nil, false, wire.Refusef(seqpb.Code_CODE_INVALID_ARGUMENT, "no space %q", s.req.Space)
	}
	m = &seqpb.KeyValues{}
	keys := texts(s.req.Uids, s.req.Names)
	for i, key := range keys {
		if s.gone[i] {
			continue
		}
		sec, err := c.owner(sp, key)
		if err != nil {
			return nil, false, err
		}
		if sec.Owner != n.session || n.deny {
			f := &seqpb.Failure{Index: uint32(i), Code: seqpb.Code_CODE_NOT_OWNER, Message: "moved", Epoch: uint64(sec.Epoch)}
			for _, o := range c.nodes {
				if o.session == sec.Owner && sec.Owner != 0 {
					f.OwnerAddr = o.addr
				}
			}
			s.gone[i] = true
			m.Failures = append(m.Failures, f)
			continue
		}
		v := c.counters[s.req.Space+"/"+key]
		if told, ok := s.told[i]; !ok || v > told {
			s.told[i] = v
			m.Index = append(m.Index, uint32(i))
			m.Current = append(m.Current, v)
		}
	}
	if s.idle++; len(m.Index)+len(m.Failures) > 0 || s.idle%100 == 0 {
		return m, false, nil
	}
	return nil, len(s.gone) == len(keys), nil
}

// watches are the streams of keys that a node has been asked for.
func (f *fakeCluster) watches(addr string) (n int) {
	f.change(func() { n = f.nodes[addr].keyWatches })
	return n
}
