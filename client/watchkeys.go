package client

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// KeyNews is what WatchKeys tells at a time.
type KeyNews struct {
	// Readings are the newest values; a key is in it at most once, and its values never go back.
	Readings []Reading
	// Missed: values came and were replaced by newer ones before they could be
	// told, since the last call took long, or the node could not get rid of them.
	Missed bool
	// Unwatched are keys of which there has been no news for long, since no node
	// serves or takes them, with the reason. Each is told once; it goes on being
	// tried, and is in Readings when it is watched again, also if it has not moved.
	Unwatched []KeyFailure
}

// KeyFailure is why a key is not watched: an *Error.
type KeyFailure struct {
	Key Key
	Err error
}

// WatchKeys calls f with the last number of each key soon after it begins, and
// then with the newest whenever keys have moved on, coalesced over about ten
// milliseconds. It follows keys to other owners, over moves and failures, without
// missing where they came to, and returns when ctx ends, the client is closed or a
// key is not one. f is not called concurrently. While it runs nothing queues: it
// gets the newest next, with Missed set.
//
// A key that cannot be watched for as long as the budget (WithBudget) is told as
// Unwatched, and the others go on: with ErrBusy if its node has as many watched
// keys as it takes; the text names the limit. Watch fewer keys then, or add nodes.
//
// A key that has got no number for a long time costs next to nothing. What
// WatchKeys tells may be some milliseconds old; Current is exact.
func (c *Client) WatchKeys(ctx context.Context, keys []Key, f func(KeyNews)) error {
	if err := c.enter(); err != nil {
		return ofRead(err)
	}
	c.leave() // a watch does not hold up Close
	w := &keyWatch{
		c: c, keys: make([]watchedKey, len(keys)), streams: make(map[*keyStream]struct{}),
		news: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	t := c.routes.hub.Load()
	for i, key := range keys {
		id, space, err := key.resolve(t)
		if err != nil {
			return ofRead(err)
		}
		w.keys[i] = watchedKey{key: key, id: id, space: *space}
	}
	var end context.CancelFunc
	w.ctx, end = context.WithCancel(ctx)
	defer w.wg.Wait()
	defer end()
	defer context.AfterFunc(c.base, end)()
	w.wg.Go(w.follow)
	for {
		select {
		case <-w.news:
		case <-w.ctx.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return &Error{Kind: KindUnavailable, Err: ErrClosed, reads: true}
		}
		n, err := w.collect()
		if err != nil {
			return err
		}
		if len(n.Readings)+len(n.Unwatched) > 0 {
			f(n)
		}
	}
}

// keyWatch is one WatchKeys. Its streams write what they hear into keys, of which
// the caller's goroutine takes what is new; follow finds a stream for every key.
type keyWatch struct {
	c    *Client
	ctx  context.Context
	wg   sync.WaitGroup
	news chan struct{} // one token: the caller has something to collect
	wake chan struct{} // one token: follow has something to do

	mu     sync.Mutex
	keys   []watchedKey
	dirty  []int
	missed bool
	// unwatched has the keys with failureDue.
	unwatched []int
	streams   map[*keyStream]struct{}
	fatal     error
}

// watchedKey is one key. It has a stream, or it is due for one.
type watchedKey struct {
	key   Key
	id    ids.Key
	space ids.Space
	value int64
	// seen: value is one. dirty: it is in keyWatch.dirty.
	seen, dirty bool
	stream      *keyStream
	// lost is since when it has no stream that told of it; zero while it has.
	lost time.Time
	// failure is why, once that has lasted long. failureDue: the caller is still to be told.
	failure    *Error
	failureDue bool
	attempt
}

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *keyWatch) collect() (KeyNews, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := KeyNews{Missed: w.missed, Readings: make([]Reading, len(w.dirty))}
	for j, i := range w.dirty {
		k := &w.keys[i]
		k.dirty = false
		n.Readings[j] = Reading{Key: k.key, Current: k.value}
	}
	for _, i := range w.unwatched {
		if k := &w.keys[i]; k.failureDue {
			k.failureDue = false
			n.Unwatched = append(n.Unwatched, KeyFailure{k.key, k.failure})
		}
	}
	w.dirty, w.missed, w.unwatched = w.dirty[:0], false, w.unwatched[:0]
	return n, w.fatal
}

// follow gives every key a stream to its owner, until the watch ends.
func (w *keyWatch) follow() {
	var seen *router.Table
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for w.ctx.Err() == nil {
		t, changed := w.c.routes.hub.Watch()
		if t != seen {
			w.reroute(t)
			seen = t
		}
		if next := w.place(t); !next.IsZero() {
			timer.Reset(time.Until(next))
		} else {
			timer.Stop()
		}
		select {
		case <-changed:
		case <-w.wake:
		case <-timer.C:
		case <-w.ctx.Done():
		}
	}
}

// reroute takes keys away from nodes that have lost them, and ends back-offs that waited for it.
func (w *keyWatch) reroute(t *router.Table) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.keys {
		k := &w.keys[i]
		if k.stream == nil {
			if waitsForRoutes(k.code) {
				k.due = time.Time{}
			}
			continue
		}
		r, err := t.Lookup(k.id)
		if err == nil && r.Owned() && r.Owner.Addr != k.stream.addr && !k.hint.beats(&r) {
			w.detach(k)
			k.due = time.Time{}
		}
	}
}

// mergeAt is how many streams of few keys may go to a node before they become one.
const mergeAt = 4

// streamTo is what can be in one stream.
type streamTo struct {
	addr  string
	space string
}

// place starts streams for the keys that are due; it returns when the next one is.
func (w *keyWatch) place(t *router.Table) (next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	// A node takes all keys of a stream or none, so those that have been refused for
	// long do not ride with others.
	type group struct {
		streamTo
		failing bool
	}
	groups := make(map[group][]int)
	for i := range w.keys {
		k := &w.keys[i]
		if k.stream != nil {
			continue
		}
		if !k.due.After(now) {
			if addr := w.aim(t, i); addr != "" {
				to := group{streamTo{addr, k.space.Name}, k.failure != nil}
				groups[to] = append(groups[to], i)
				continue
			}
		}
		if next.IsZero() || k.due.Before(next) {
			next = k.due
		}
	}
	for to, keys := range groups {
		// Nor with those that the node has taken before, and none of these is moved when
		// it is full.
		if !slices.ContainsFunc(keys, func(i int) bool { return w.keys[i].code == seqpb.Code_CODE_BUSY }) {
			w.startAll(to.streamTo, w.absorb(to.streamTo))
		}
		w.startAll(to.streamTo, keys)
	}
	return next
}

func (w *keyWatch) startAll(to streamTo, keys []int) {
	for len(keys) > 0 {
		n := min(len(keys), w.c.opts.maxBatch)
		w.start(to, keys[:n:n])
		keys = keys[n:]
	}
}

// aim is where a key is served; "" if nobody is known, and then it is due later.
func (w *keyWatch) aim(t *router.Table, i int) string {
	k := &w.keys[i]
	r, err := t.Lookup(k.id)
	if err == nil {
		if addr := k.attempt.aim(&r); addr != "" {
			return addr
		}
	}
	w.c.routes.refreshFor(r.Set)
	if err == nil {
		err = errNoOwner
	}
	k.node = nil // nobody was asked
	w.later(i, seqpb.Code_CODE_NOT_READY, err)
	return ""
}

// absorb ends the small streams to a node if they have become many, for their keys to ride in one.
func (w *keyWatch) absorb(to streamTo) (keys []int) {
	var small []*keyStream
	for s := range w.streams {
		if s.streamTo == to && s.left < w.c.opts.maxBatch/2 {
			small = append(small, s)
		}
	}
	if len(small) < mergeAt {
		return nil
	}
	for _, s := range small {
		for _, i := range s.keys {
			if w.keys[i].stream == s {
				w.detach(&w.keys[i])
				keys = append(keys, i)
			}
		}
	}
	return keys
}

// detach takes a key from its stream, which ends with its last.
func (w *keyWatch) detach(k *watchedKey) {
	s := k.stream
	k.stream = nil
	if s.left--; s.left == 0 {
		s.stop()
		delete(w.streams, s)
	}
}

// leave takes a key from a stream that serves it no longer, and plans what next.
func (w *keyWatch) leave(i int, r *reply) {
	k := &w.keys[i]
	k.node, k.code = k.stream.node, r.code
	w.detach(k)
	elsewhere := w.c.routes.doubt(&k.attempt, k.id, r)
	next, refresh := decide(outcome{code: r.code, idempotent: true, elsewhere: elsewhere, redirects: k.redirects})
	if refresh {
		w.c.routes.refreshFor(k.set)
	}
	switch next {
	case stepNow:
		k.redirects++
		k.due = time.Time{}
	case stepWait:
		w.later(i, r.code, r.cause)
	default:
		if w.fatal == nil {
			w.fatal = &Error{Kind: Kind(r.code), Key: k.key, Owner: k.node.addr, Err: r.cause, reads: true}
		}
		ring(w.news)
	}
}

func (w *keyWatch) later(i int, code seqpb.Code, cause error) {
	k := &w.keys[i]
	k.code, k.redirects = code, 0
	now := time.Now()
	if k.lost.IsZero() {
		k.lost = now
	}
	if k.failure == nil && now.Sub(k.lost) >= w.c.opts.budget {
		k.failure = &Error{Kind: kindOfRead(code), Key: k.key, Epoch: uint64(k.epoch), Err: cause, watch: true}
		if k.node != nil {
			k.failure.Owner = k.node.addr
		}
		k.failureDue = true
		w.unwatched = append(w.unwatched, i)
		ring(w.news)
	}
	wait := delay(code, k.waits, w.c.opts.rand.float())
	if k.failure != nil && code == seqpb.Code_CODE_BUSY {
		wait = fullAgain/2 + time.Duration(w.c.opts.rand.float()*float64(fullAgain/2))
	}
	k.due = now.Add(wait)
	k.waits++
}

// fullAgain is how often a node that is full is asked to take keys at the least,
// once the caller knows: their going round is not to keep it from its work.
const fullAgain = 2 * time.Second

// told: a stream of the key's own told its value. It reports whether the caller
// believes that the key is not watched.
func (k *watchedKey) told() (unwatched bool) {
	k.waits, k.redirects, k.denied, k.code = 0, 0, 0, seqpb.Code_CODE_OK
	unwatched = k.failure != nil
	k.lost, k.failure, k.failureDue = time.Time{}, nil, false
	return unwatched
}

var errNoOwner = errors.New("nobody owns its section yet")

// errSilent: a stream that should have shown that it lives did not.
var errSilent = errors.New("the node's stream has been silent for long")
