package arena

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Options of an arena.
type Options struct {
	// Path of the file; "" is DefaultPath.
	Path string
	// Cluster and Node are names: an arena of another is not trusted.
	Cluster, Node string
	// MaxBytes the arena may take; 0 is DefaultMaxBytes.
	MaxBytes int64
	// BootID identifies this run of the machine; "" asks the kernel.
	BootID string
	// Region is where the memory is; nil maps Path.
	Region Region
	Logger *zap.Logger
	Bugs   Bugs
}

// DefaultMaxBytes is room for some 67 million neighbouring uids.
const DefaultMaxBytes = 1 << 30

// Bugs switches single protections off, to show that the simulation notices. The zero value is correct.
type Bugs struct {
	// TrustAnyArena takes over whatever can be read at all.
	TrustAnyArena bool
	// CloseWithoutBit closes a key by max = cur only, so that a late answer opens it again.
	CloseWithoutBit bool
	// KeepSectionOpenable opens a closed section, and its keys, at the same epoch again.
	KeepSectionOpenable bool
}

// Identity says whose numbers an arena has.
type Identity struct {
	ClusterID   string
	Session     ids.SessionID
	Incarnation ids.Incarnation
}

// Arena is the counters of one AllocSvr. All methods may be called at any time
// from any goroutine, but for Previous, Reset, Adopt and Close, which are their
// owner's and come one at a time.
type Arena struct {
	opts   Options
	region Region
	guard  *Guard
	owner  *cellOwner
	log    *zap.Logger

	mem atomic.Pointer[memory]

	mu       sync.Mutex
	verified *memory
	closed   bool
	resumed  func(sections uint32)
	commit   func(Intent) error
}

// Open creates or maps the arena and takes its lock; *InUseError if another
// process has it. It trusts nothing: then call Previous, and Adopt or Reset.
func Open(o Options) (*Arena, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Path == "" {
		o.Path = DefaultPath(o.Cluster, o.Node, "arena")
	}
	if o.BootID == "" {
		id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("cannot read the boot id: %w", err)
		}
		o.BootID = strings.TrimSpace(string(id))
	}
	r := o.Region
	if r == nil {
		r = NewFile(o.Path, o.MaxBytes)
	}
	if err := r.Lock(); err != nil {
		return nil, err
	}
	return &Arena{opts: o, region: r, guard: NewGuard(), owner: &cellOwner{bugs: o.Bugs}, log: o.Logger}, nil
}

// Guard is what readers hold around Find and the use of the Cell.
func (a *Arena) Guard() *Guard { return a.guard }

// Previous says whose arena a dead process left, after verifying all of it. The
// error is ErrNone if there is none, or an *UntrustedError that says why it cannot
// be used. Of an arena in use it gives the present identity.
func (a *Arena) Previous() (Identity, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return Identity{}, ErrNotReady
	}
	if m := a.mem.Load(); m != nil {
		return m.identity(), nil
	}
	a.verified = nil
	if a.region.Size() == 0 {
		return Identity{}, ErrNone
	}
	m, err := verify(a.region, a.opts, a.guard, a.owner)
	if err != nil {
		return Identity{}, err
	}
	a.verified = m
	return m.identity(), nil
}

func (m *memory) identity() Identity {
	return Identity{ClusterID: m.header.clusterID, Session: m.header.session, Incarnation: m.header.incarnation}
}

// Matches tells whether what Previous verified was made for this division and these spaces; else *ShapeError.
func (a *Arena) Matches(sections uint32, spaces []ids.Space) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.verified
	if m == nil {
		m = a.mem.Load()
	}
	if m == nil {
		return ErrNotReady
	}
	if m.header.sections != sections {
		return &ShapeError{a.region.Name(), fmt.Sprintf("%d sections, the cluster has %d", m.header.sections, sections)}
	}
	if len(m.spaces) != len(spaces) {
		return &ShapeError{a.region.Name(), fmt.Sprintf("%d spaces, the cluster has %d", len(m.spaces), len(spaces))}
	}
	for i := range spaces {
		if m.spaces[i] != spaces[i] {
			return &ShapeError{a.region.Name(), fmt.Sprintf("space %+v, the cluster has %+v", m.spaces[i], spaces[i])}
		}
	}
	return nil
}

// Reset starts empty, as the given session. Cells found before are closed for
// good; it waits for the guards entered before.
func (a *Arena) Reset(id Identity, sections uint32, spaces []ids.Space) error {
	if err := checkShape(sections, spaces); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return ErrNotReady
	}
	a.verified = nil
	a.retire()
	b := body{
		cluster: a.opts.Cluster, node: a.opts.Node, bootID: a.opts.BootID, clusterID: id.ClusterID,
		session: id.Session, sections: sections, spaces: append([]ids.Space(nil), spaces...),
	}
	encoded := b.encode()
	bytes := headerBytesFor(encoded)
	front := frontBytesFor(bytes, sections)
	// An arena that would never hold a key is refused now, not at its first call.
	if least := front + extentBytes; least > a.opts.MaxBytes {
		return &FullError{Path: a.region.Name(), Need: least, Limit: a.opts.MaxBytes}
	}
	if err := a.region.Clear(); err != nil {
		return err
	}
	if err := a.region.Grow(front); err != nil {
		return err
	}
	writeHeader(a.region, bytes, encoded, id.Incarnation)
	h, err := readHeader(a.region)
	if err != nil {
		return fmt.Errorf("reading back a new header: %w", err)
	}
	a.install(newMemory(h, a.region, a.guard, a.owner, a.opts.MaxBytes))
	a.log.Info("arena starts empty", zap.String("path", a.region.Name()),
		zap.Uint64("session", uint64(id.Session)), zap.Uint32("incarnation", uint32(id.Incarnation)))
	return nil
}

func (a *Arena) install(m *memory) {
	a.owner.intents.Store(&m.intents)
	a.mem.Store(m)
}

// settleIntents finishes or voids what the dead process was noting.
func (a *Arena) settleIntents(m *memory) {
	defer a.guard.Enter().Exit()
	if a.resumed != nil {
		a.resumed(m.header.sections)
	}
	for i := range cellStripes {
		w := a.owner.intent(i)
		in, _ := readIntent(w)
		if in.N == 0 {
			continue
		}
		if c, ok := m.find(in.Key); ok {
			if err := c.settle(in, a.commit); err != nil {
				a.log.Warn("a request id could not be kept, its numbers are issued anew", zap.Stringer("key", in.Key), zap.Error(err))
			}
		}
		w[0].Store(0)
	}
}

func checkShape(sections uint32, spaces []ids.Space) error {
	if sections == 0 {
		return errors.New("arena needs at least one section")
	}
	seen := map[ids.SpaceID]bool{}
	for _, s := range spaces {
		if seen[s.ID] || s.Kind != ids.KindUID && s.Kind != ids.KindName {
			return fmt.Errorf("arena cannot hold space %+v", s)
		}
		seen[s.ID] = true
	}
	return nil
}

// retire makes the present content unreachable and waits until nobody uses it.
func (a *Arena) retire() {
	m := a.mem.Swap(nil)
	if m == nil {
		return
	}
	for _, s := range m.sections {
		s.mu.Lock()
		if epoch, _ := s.state(); epoch != 0 {
			s.set(epoch, true)
		}
		s.list().each(m, func(_ ids.Key, c Cell) bool { c.Close(); return true })
		s.mu.Unlock()
	}
	_ = a.guard.Wait(context.Background())
}

// Adopt takes over what Previous verified, after StoreSvr confirmed the resumption
// as the given incarnation. On an arena in use it only notes the incarnation.
func (a *Arena) Adopt(inc ids.Incarnation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.mem.Load()
	if m == nil {
		m = a.verified
	}
	if m == nil || a.closed {
		return ErrNotReady
	}
	m.header.incarnation = inc
	a.region.Words(0, pageBytes)[wordIncarnation].Store(sealCount(uint32(inc), wordIncarnation))
	if a.verified == m {
		a.verified = nil
		a.install(m)
		a.settleIntents(m)
		a.log.Info("arena resumed", zap.String("path", a.region.Name()),
			zap.Uint64("session", uint64(m.header.session)), zap.Uint32("incarnation", uint32(inc)),
			zap.Int64("keys", m.stats().Keys))
	}
	return nil
}

// Close gives the arena up; with remove, its file too, safely against another
// process that is just opening it. It waits for the guards entered before.
func (a *Arena) Close(remove bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	a.verified = nil
	a.mem.Store(nil)
	_ = a.guard.Wait(context.Background())
	return a.region.Close(remove)
}
