package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// silentMax is how long a stream may say nothing: a node shows every second that it lives.
const silentMax = 3 * time.Second

// keyStream is one subscription of a keyWatch with one node. Everything in it but
// its own goroutine's things is under the watch's lock.
type keyStream struct {
	streamTo
	w    *keyWatch
	node *node
	ctx  context.Context
	stop context.CancelFunc
	keys []int // indices in the watch, in the order of the request
	left int   // of them, those that are still in this stream
}

// start makes a stream of keys that have none. It needs the watch's lock.
func (w *keyWatch) start(to streamTo, keys []int) {
	s := &keyStream{streamTo: to, w: w, node: w.c.pool.get(to.addr), keys: keys, left: len(keys)}
	s.ctx, s.stop = context.WithCancel(w.ctx)
	req := &seqpb.WatchKeysRequest{Space: to.space}
	for _, i := range keys {
		k := &w.keys[i]
		k.stream = s
		if k.space.Kind == ids.KindUID {
			req.Uids = append(req.Uids, k.id.Hi)
		} else {
			req.Names = append(req.Names, k.key.text)
		}
	}
	w.streams[s] = struct{}{}
	w.wg.Go(func() { s.run(req) })
}

// run takes messages until the stream ends; then its keys are without one.
func (s *keyStream) run(req *seqpb.WatchKeysRequest) {
	defer s.stop()
	silent := time.AfterFunc(silentMax, s.stop)
	defer silent.Stop()
	err := s.w.c.pool.use(s.addr, func(c Conn) error {
		stream, err := c.WatchKeys(s.ctx, req)
		if err != nil {
			return err
		}
		defer stream.Close()
		for {
			m, err := stream.Recv()
			if err != nil {
				return err
			}
			silent.Reset(silentMax)
			if err := s.take(m); err != nil {
				return err
			}
		}
	})
	s.ended(err)
}

// take believes all of a message or nothing. Values count whoever has the key by now.
func (s *keyStream) take(m *seqpb.KeyValues) error {
	if len(m.Index) != len(m.Current) {
		return fmt.Errorf("%w: %d values of %d keys", errMalformed, len(m.Current), len(m.Index))
	}
	for j, i := range m.Index {
		if int(i) >= len(s.keys) || ids.Seq(m.Current[j]) > ids.MaxSeq {
			return fmt.Errorf("%w: number %d of key %d of %d", errMalformed, m.Current[j], i, len(s.keys))
		}
	}
	for _, f := range m.Failures {
		if f == nil || int(f.Index) >= len(s.keys) || f.Code == seqpb.Code_CODE_OK {
			return fmt.Errorf("%w: a failure of no key", errMalformed)
		}
	}
	w := s.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = w.missed || m.Missed > 0
	for j, i := range m.Index {
		k := &w.keys[s.keys[i]]
		back := k.stream == s && k.told()
		v := int64(m.Current[j])
		if k.seen && v <= k.value && !back {
			continue
		}
		k.value, k.seen = max(k.value, v), true
		if k.dirty {
			w.missed = true
			continue
		}
		k.dirty = true
		w.dirty = append(w.dirty, s.keys[i])
	}
	for _, f := range m.Failures {
		if i := s.keys[f.Index]; w.keys[i].stream == s {
			w.leave(i, &reply{
				code: f.Code, cause: &wire.Refused{Code: f.Code, Message: f.Message},
				hint: hintOf(f),
			})
		}
	}
	if len(w.dirty) > 0 {
		ring(w.news)
	}
	if len(m.Failures) > 0 {
		ring(w.wake)
	}
	return nil
}

// ended has the keys that are left look for another stream.
func (s *keyStream) ended(err error) {
	w := s.w
	if w.ctx.Err() != nil {
		return
	}
	code := wire.CodeOf(err)
	switch {
	case errors.Is(err, io.EOF):
		code = seqpb.Code_CODE_UNAVAILABLE
	case s.ctx.Err() != nil:
		code, err = seqpb.Code_CODE_UNAVAILABLE, errSilent
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range s.keys {
		if w.keys[i].stream == s {
			w.leave(i, &reply{code: code, cause: err})
		}
	}
	delete(w.streams, s)
	ring(w.wake)
}
