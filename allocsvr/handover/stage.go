package handover

import (
	"fmt"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// keepFor is how long a window is kept for a section that has not come yet: the
	// release is on its way, and may wait for an election.
	keepFor = 30 * time.Second
	// stageMax bounds the memory of what is kept.
	stageMax = 64 << 20
	// entryBytes and windowBytes are what a record and a window take in memory.
	entryBytes  = 48
	windowBytes = 256
)

// Stage keeps the windows of sections that are about to come. It belongs to one session.
type Stage struct {
	clusterID string
	session   ids.SessionID
	limit     int

	mu sync.Mutex
	// opened is the highest epoch of each section that is not waited for any more.
	opened []ids.Epoch
	kept   map[ids.Section]*window
	bytes  int
}

// window is a section's, as far as it has come.
type window struct {
	epoch ids.Epoch
	from  uint64
	taken uint64
	parts []dedupe.Export // Since 0: has not come yet
	came  int
	bytes int
	until time.Time
}

// NewStage makes the stage of a session in a Set of that many sections.
func NewStage(clusterID string, session ids.SessionID, sections uint32) *Stage {
	return &Stage{
		clusterID: clusterID, session: session, limit: stageMax,
		opened: make([]ids.Epoch, sections), kept: map[ids.Section]*window{},
	}
}

// Take is Peer.TakeWindow: all of the request is kept, but for what comes too late, or nothing.
func (s *Stage) Take(req *seqpb.TakeWindowRequest) *seqpb.TakeWindowReply {
	switch {
	case req.ClusterId != s.clusterID:
		return refuse(seqpb.RefusalCode_REFUSAL_WRONG_CLUSTER, "this is cluster %s", s.clusterID)
	case req.ToSession != uint64(s.session):
		return refuse(seqpb.RefusalCode_REFUSAL_SESSION_EXPIRED, "this is session %d, not %d", s.session, req.ToSession)
	case req.FromSession == 0 || req.FromSession == req.ToSession:
		return refuse(seqpb.RefusalCode_REFUSAL_INVALID, "session %d cannot give to session %d", req.FromSession, req.ToSession)
	}
	exports := make([]dedupe.Export, len(req.Parts))
	for i, p := range req.Parts {
		var err error
		if exports[i], err = read(req, p); err != nil {
			return refuse(seqpb.RefusalCode_REFUSAL_INVALID, "%v", err)
		}
		if int(p.Section) >= len(s.opened) {
			return refuse(seqpb.RefusalCode_REFUSAL_INVALID, "section %d of %d", p.Section, len(s.opened))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked()
	need := 0
	for _, e := range exports {
		need += len(e.Entries)*entryBytes + windowBytes
	}
	if s.bytes+need > s.limit {
		return refuse(seqpb.RefusalCode_REFUSAL_BUSY, "windows of %d bytes wait for their sections, at most %d are kept", s.bytes, s.limit)
	}
	for i, p := range req.Parts {
		s.put(req.FromSession, p, exports[i])
	}
	return &seqpb.TakeWindowReply{}
}

func refuse(code seqpb.RefusalCode, format string, args ...any) *seqpb.TakeWindowReply {
	return &seqpb.TakeWindowReply{Refusal: &seqpb.Refusal{Code: code, Message: fmt.Sprintf(format, args...)}}
}

func (s *Stage) put(from uint64, p *seqpb.WindowPart, e dedupe.Export) {
	no, epoch := ids.Section(p.Section), ids.Epoch(p.Epoch)
	if epoch <= s.opened[no] {
		return
	}
	w := s.kept[no]
	switch {
	case w == nil:
	case epoch < w.epoch, epoch == w.epoch && p.TakenMs < w.taken:
		return
	case epoch > w.epoch, p.TakenMs > w.taken, from != w.from, len(w.parts) != int(p.Parts):
		s.dropLocked(no)
		w = nil
	}
	if w == nil {
		w = &window{epoch: epoch, from: from, taken: p.TakenMs, parts: make([]dedupe.Export, p.Parts)}
		s.kept[no] = w
	}
	w.until = time.Now().Add(keepFor)
	if w.parts[p.Part].Since != 0 {
		return
	}
	w.parts[p.Part] = e
	w.came++
	n := len(e.Entries)*entryBytes + windowBytes
	w.bytes += n
	s.bytes += n
}

// Open ends the waiting for a section that is opened at epoch e. ok: this is the
// whole window that its last owner sent for just that.
func (s *Stage) Open(no ids.Section, e ids.Epoch) (_ dedupe.Export, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[no] = max(s.opened[no], e)
	w := s.kept[no]
	if w == nil {
		return dedupe.Export{}, false
	}
	if w.epoch > e {
		return dedupe.Export{}, false // for a later time
	}
	s.dropLocked(no)
	if w.epoch != e || w.came != len(w.parts) {
		return dedupe.Export{}, false
	}
	all := w.parts[0]
	for _, part := range w.parts[1:] {
		if part.Since != all.Since {
			return dedupe.Export{}, false
		}
		all.Entries = append(all.Entries, part.Entries...)
	}
	return all, true
}

// Sweep forgets what has waited too long.
func (s *Stage) Sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked()
}

// Bytes is about how much memory is in use.
func (s *Stage) Bytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

func (s *Stage) sweepLocked() {
	now := time.Now()
	for no, w := range s.kept {
		if now.After(w.until) {
			s.dropLocked(no)
		}
	}
}

func (s *Stage) dropLocked(no ids.Section) {
	s.bytes -= s.kept[no].bytes
	delete(s.kept, no)
}
