package allocsvr

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// A subscription looks at its keys' cells from time to time; nobody tells it
// anything. So allocating costs the same whether anybody watches or not, values
// coalesce by themselves, and a consumer that does not take holds up its own
// goroutine and nothing else: it finds the newest when it takes again, and is told
// how many looks it missed. What a subscription holds is fixed when it begins.
//
// A key that was handed back, its section going on to serve, is read once more; so
// is one that may have been held and handed back since it was read.
//
// A key whose section has left is read once more the way Current reads it. That
// answers if the section is ours again, and else says where it went. So is a key
// whose range has left for another Set; and one whose range came from there, which
// may have left, and got numbers, between two looks.
//
// When many watched keys come at once, say with the sections of a node that is
// drained, one subscription reads at a time, a part of its keys: else reading them
// all takes from the node and from the store group what heartbeats need, the leases
// run out, and all that is read is in vain. What could not be read is read later.
const (
	// watchInterval is how often a subscription looks, unless it says otherwise.
	watchInterval    = 10 * time.Millisecond
	watchIntervalMin = time.Millisecond
	watchIntervalMax = 10 * time.Second
	// watchKeyCost stretches the interval where many keys are watched: one look at
	// a cell takes about a tenth of it, so looking takes at most a tenth of one core.
	watchKeyCost = 1500 * time.Nanosecond
	// watchAlive is how long a stream is silent at most.
	watchAlive = time.Second
	// watchReadWait bounds the reading of keys that are not in the arena.
	watchReadWait = 500 * time.Millisecond
	// watchReadKeys is how many of them one subscription reads at a time.
	watchReadKeys = 1000
)

// watchPause is the time between two looks of each subscription while watched keys are subscribed in all.
func watchPause(interval time.Duration, watched int64) time.Duration {
	return max(interval, time.Duration(watched)*watchKeyCost)
}

func watchIntervalOf(ms uint32) time.Duration {
	if ms == 0 {
		return watchInterval
	}
	return min(max(time.Duration(ms)*time.Millisecond, watchIntervalMin), watchIntervalMax)
}

// WatchKeys implements seqpb.Seq. It ends by itself when every key has left.
func (s *Server) WatchKeys(req *seqpb.WatchKeysRequest, stream seqpb.Seq_WatchKeysServer) error {
	w, err := s.present()
	if err != nil {
		return err
	}
	keys, err := s.parseKeys(w, req.Space, req.Uids, req.Names)
	if err != nil {
		return err
	}
	n := int64(len(keys))
	if s.watched.Add(n) > int64(s.cfg.MaxWatchedKeys) {
		s.watched.Add(-n)
		return wire.Refusef(seqpb.Code_CODE_BUSY, "%d keys are watched here at most: watch fewer, or add nodes", s.cfg.MaxWatchedKeys)
	}
	defer s.watched.Add(-n)
	p := &pusher{s: s, stream: stream, interval: watchIntervalOf(req.IntervalMs), last: time.Now()}
	return p.run(stream.Context(), newKeyWatch(s, w, keys))
}

// pusher sends what one subscription finds.
type pusher struct {
	s        *Server
	stream   seqpb.Seq_WatchKeysServer
	interval time.Duration
	last     time.Time // of the last message
	missed   time.Duration
}

func (p *pusher) run(ctx context.Context, kw *keyWatch) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.s.dying:
			return errStopping
		}
		doubtful := kw.look()
		// What is known at once does not wait for what must be asked for.
		if err := p.push(kw); err != nil {
			return err
		}
		if len(doubtful) > 0 {
			kw.ask(ctx, doubtful)
			if err := p.push(kw); err != nil {
				return err
			}
		}
		if kw.left == 0 {
			return nil
		}
		timer.Reset(p.pause())
	}
}

func (p *pusher) pause() time.Duration { return watchPause(p.interval, p.s.watched.Load()) }

// push sends the news, if there are any or it is time for a sign of life.
func (p *pusher) push(kw *keyWatch) error {
	m := kw.news()
	if m == nil {
		if time.Since(p.last) < watchAlive {
			return nil
		}
		m = &seqpb.KeyValues{}
	}
	m.Missed = uint32(min(p.missed/p.pause(), math.MaxUint32))
	start := time.Now()
	err := p.stream.Send(m)
	p.last = time.Now()
	p.missed = p.last.Sub(start)
	return err
}

// keyWatch is what a subscription knows of its keys. One goroutine has it.
type keyWatch struct {
	s        *Server
	w        *world
	ranges   *ranges // as of the last look
	sections []watchedSection
	keys     []watchedKey
	left     int   // keys that are still watched
	unread   []int // keys that are to be read still, since the last look
	failed   []*seqpb.Failure
}

// watchedSection is a section with keys that are watched.
type watchedSection struct {
	sec  *section
	keys []int
	// epoch and taken at the last look: while both are the same, no key of the section has moved.
	epoch ids.Epoch
	taken uint64
	// gains as of the ranges of the last look.
	gains uint32
}

type watchedKey struct {
	key   ids.Key
	value ids.Seq
	// known: value is one. told: it was sent. held: it came from the arena.
	known, told, held bool
	gone              bool
	// unread: it is in keyWatch.unread.
	unread bool
	// forgotten is how often keys like it had been, when it was last not found.
	forgotten uint32
}

// forgotten counts, for each of some sets of keys, how often one of them was
// forgotten here. A key may be acquired, used, handed back and forgotten between two
// looks at it; whoever looks at it, and does not find it, knows of that by its count.
type forgotten [1024]atomic.Uint32

func (f *forgotten) of(k ids.Key) *atomic.Uint32 {
	const odd = 0x9e3779b97f4a7c15
	h := ((uint64(k.Space)*odd^k.Hi)*odd ^ k.Lo) * odd
	return &f[h>>54]
}

func newKeyWatch(s *Server, w *world, keys []ids.Key) *keyWatch {
	kw := &keyWatch{s: s, w: w, keys: make([]watchedKey, len(keys)), left: len(keys)}
	at := make(map[ids.Section]int)
	for i, k := range keys {
		kw.keys[i].key = k
		sec := w.section(k)
		j, ok := at[sec.no]
		if !ok {
			j = len(kw.sections)
			at[sec.no] = j
			kw.sections = append(kw.sections, watchedSection{sec: sec})
		}
		kw.sections[j].keys = append(kw.sections[j].keys, i)
	}
	return kw
}

// look reads the cells of keys that can have moved since the last time, and
// lists those of which the arena does not tell.
func (kw *keyWatch) look() (doubtful []int) {
	r := kw.w.ranges.Load()
	moved := r != kw.ranges
	kw.ranges = r
	var found []int
	rest := kw.sections[:0]
	for _, ws := range kw.sections {
		found = kw.lookAt(&ws, moved, found)
		if len(ws.keys) > 0 {
			rest = append(rest, ws)
		}
	}
	kw.sections = rest
	for _, i := range kw.unread { // they have waited
		if !kw.keys[i].gone {
			doubtful = append(doubtful, i)
		}
	}
	return append(doubtful, found...)
}

// lookAt is look for one section. The guard is held for no more than the keys
// of one section, so that a close does not wait for all of a large subscription.
func (kw *keyWatch) lookAt(ws *watchedSection, moved bool, doubtful []int) []int {
	defer kw.s.arena.Guard().Enter().Exit()
	live := ws.keys[:0]
	for _, i := range ws.keys {
		if !kw.keys[i].gone {
			live = append(live, i)
		}
	}
	ws.keys = live
	_, epoch := ws.sec.state()
	doubt := func(i int) {
		if !kw.keys[i].unread {
			doubtful = append(doubtful, i)
		}
	}
	if !ws.sec.open.Load() {
		ws.epoch = 0
		for _, i := range ws.keys {
			doubt(i)
		}
		return doubtful
	}
	if !kw.s.session.Alive() {
		for _, i := range ws.keys {
			kw.fail(i, errLeaseExpired)
		}
		ws.keys = nil
		return doubtful
	}
	// Taken is read before the cells: a number that is missed here is counted
	// after its cell has changed, so the next look sees the count. It is counted
	// inside the guard, thus before the key can be handed back and forgotten.
	taken := kw.w.taken.of(ws.sec.no)
	fresh := epoch != ws.epoch
	if moved {
		// Read after the ranges: keys that come in later are not in those.
		n := kw.w.gainsOf(ws.sec.no)
		fresh, ws.gains = fresh || n != ws.gains, n
	}
	if !fresh && !moved && taken == ws.taken {
		return doubtful
	}
	ws.epoch, ws.taken = epoch, taken
	for _, i := range ws.keys {
		k := &kw.keys[i]
		if !kw.ranges.has(k.key) {
			doubt(i)
			continue
		}
		if cell, ok := kw.s.arena.Find(k.key); ok {
			if cur, bound, _ := cell.Load(); bound != 0 {
				k.set(cur, true)
				continue
			}
		}
		// A key that is not held has not moved since it was read, unless it was held in
		// between: then it has been forgotten. That is counted before it is not found.
		n := kw.s.forgotten.of(k.key).Load()
		if fresh || k.held || !k.known || n != k.forgotten {
			doubt(i)
		}
		k.forgotten = n
	}
	return doubtful
}

func (k *watchedKey) set(v ids.Seq, held bool) {
	k.told = k.told && v <= k.value
	k.value, k.known, k.held = max(k.value, v), true, held
}

// ask reads some of the keys as Current does. Those that are not served here leave;
// those for which there was no time stay unread.
func (kw *keyWatch) ask(ctx context.Context, doubtful []int) {
	n := min(len(doubtful), watchReadKeys)
	rs := make([]reading, n)
	for j, i := range doubtful[:n] {
		rs[j].key = kw.keys[i].key
	}
	kw.s.current(ctx, kw.w, rs, watchReadWait, kw.s.watchReads)
	kw.unread = append(kw.unread[:0], doubtful[n:]...)
	for j, i := range doubtful[:n] {
		k := &kw.keys[i]
		k.unread = false
		switch f := rs[j].fail; {
		case f == nil:
			k.set(rs[j].value, false)
		case f.Code == seqpb.Code_CODE_BUSY:
			kw.unread = append(kw.unread, i)
		default:
			kw.fail(i, f)
		}
	}
	for _, i := range kw.unread {
		kw.keys[i].unread = true
	}
}

func (kw *keyWatch) fail(i int, f *Failure) {
	kw.keys[i].gone = true
	kw.left--
	kw.failed = append(kw.failed, failurePB(i, f))
}

// news is what was not sent yet; nil if there is nothing.
func (kw *keyWatch) news() *seqpb.KeyValues {
	m := &seqpb.KeyValues{Failures: kw.failed}
	kw.failed = nil
	for i := range kw.keys {
		if k := &kw.keys[i]; k.known && !k.told {
			k.told = true
			m.Index = append(m.Index, uint32(i))
			m.Current = append(m.Current, uint64(k.value))
		}
	}
	if len(m.Index) == 0 && len(m.Failures) == 0 {
		return nil
	}
	return m
}
