package allocsvr

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/allocsvr/handover"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

var _ seqpb.Peer = (*Server)(nil)

// TakeWindow implements seqpb.Peer: it keeps request ids of sections that are about to come.
func (s *Server) TakeWindow(_ context.Context, req *seqpb.TakeWindowRequest) (*seqpb.TakeWindowReply, error) {
	w := s.world.Load()
	if w == nil || w.lost.Load() || s.closed() {
		return &seqpb.TakeWindowReply{Refusal: &seqpb.Refusal{Code: seqpb.RefusalCode_REFUSAL_NOT_READY, Message: "no session"}}, nil
	}
	return w.stage.Take(req), nil
}

// nextOwners are where the leader plans revoked sections to go: of the sections that a directive revokes, without those for which none is planned.
func nextOwners(d *seqpb.Directive) map[ids.Section]handover.Target {
	addr := make(map[uint64]string, len(d.Next))
	for _, n := range d.Next {
		addr[n.Session] = n.Addr
	}
	next := make(map[ids.Section]handover.Target, len(d.Revoke))
	for i, no := range d.Revoke {
		if i >= len(d.NextSession) || i >= len(d.NextEpoch) {
			break
		}
		if a := addr[d.NextSession[i]]; a != "" {
			next[ids.Section(no)] = handover.Target{Epoch: ids.Epoch(d.NextEpoch[i]), To: ids.SessionID(d.NextSession[i]), Addr: a}
		}
	}
	return next
}

// windowsOf is what differs for the windows of single spaces.
func (c *Config) windowsOf(spaces []ids.Space) map[ids.SpaceID]dedupe.SpaceOptions {
	windows := map[ids.SpaceID]dedupe.SpaceOptions{}
	for _, sp := range spaces {
		if own, ok := c.Spaces[sp.Name]; ok {
			windows[sp.ID] = dedupe.SpaceOptions{Window: own.Window, EntriesMax: own.WindowEntriesMax}
		}
	}
	return windows
}

func (k *keeper) newCarrier() *handover.Carrier {
	return handover.NewCarrier(handover.Config{
		ClusterID: k.w.clusterID, Session: k.w.session, Window: k.s.window, Dial: k.s.cfg.DialPeer, Logger: k.log,
		Submit: func(items []raise.Item) {
			// The queue refuses only when it is closed, and the process with it.
			_ = k.s.queue.Submit(raise.HandBack, items...)
		},
		Sent: func(arrived, failed int) {
			k.s.count.windowsSent.Add(uint64(arrived))
			k.s.count.windowsUnsent.Add(uint64(failed))
		},
	})
}

// goesAlong: the hand-back has to wait until the section's window is at its next owner.
// Nothing is added to the window any more: the section is closed, and its callers have left.
func (k *keeper) goesAlong(rel *release, to handover.Target) bool {
	bugs := &k.s.cfg.Bugs
	return k.carrier != nil && to.To != 0 && !bugs.HandBackBeforeClose && !bugs.ReopenClosing && !bugs.ForgetBeforeAck && k.s.window.Used(rel.sec)
}

// takeOver imports what the last owner sent of a section that was just opened in
// the arena and does not serve yet. Without it the window begins now.
func (k *keeper) takeOver(no ids.Section, e ids.Epoch) {
	window, ok := k.w.stage.Open(no, e)
	if !ok {
		return
	}
	log := k.log.With(zap.Uint32("section", uint32(no)), zap.Uint64("epoch", uint64(e)), zap.Int("records", len(window.Entries)))
	if err := k.s.window.Import(no, window, uint64(time.Now().UnixMilli())); err != nil {
		log.Warn("window of request ids not taken over whole", zap.Error(err))
		return
	}
	if at := k.w.gainedAt(no); at != 0 {
		// The last owner may not have known that keys came in.
		k.s.window.NotBefore(no, at)
	}
	k.s.count.windowsTaken.Add(1)
	log.Debug("window of request ids taken over")
}
