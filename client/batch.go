package client

import (
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// errMalformed: a reply that cannot be believed. Its request may have been executed.
var errMalformed = errors.New("malformed reply")

func (n *node) allocRequest(l *lane, batch []*op, timeoutMS uint32) *seqpb.AllocRequest {
	req := &seqpb.AllocRequest{Space: l.space.Name, TimeoutMs: timeoutMS}
	req.Uids, req.Names = keysOf(l, batch)
	req.MapVersion, req.SetVersion = n.pool.routes.versions(batch[0].set)
	for i, o := range batch {
		if o.n != 1 && req.Counts == nil {
			req.Counts = make([]uint32, len(batch))
			for j := range req.Counts {
				req.Counts[j] = 1
			}
		}
		if req.Counts != nil {
			req.Counts[i] = o.n
		}
		if o.hasID {
			if req.RequestIds == nil {
				req.RequestIds = make([][]byte, len(batch))
			}
			req.RequestIds[i] = o.reqID[:]
		}
	}
	return req
}

func (n *node) allocated(batch []*op, rep *seqpb.AllocReply) error {
	n.pool.routes.learn(rep.Routes, batch[0].set, rep.MapVersion, rep.SetVersion)
	if err := allocReplies(batch, rep); err != nil {
		return err
	}
	deliverAll(batch)
	return nil
}

func (n *node) currentRequest(l *lane, batch []*op, timeoutMS uint32) *seqpb.CurrentRequest {
	req := &seqpb.CurrentRequest{Space: l.space.Name, TimeoutMs: timeoutMS}
	req.Uids, req.Names = keysOf(l, batch)
	req.MapVersion, req.SetVersion = n.pool.routes.versions(batch[0].set)
	return req
}

func (n *node) read(batch []*op, rep *seqpb.CurrentReply) error {
	n.pool.routes.learn(rep.Routes, batch[0].set, rep.MapVersion, rep.SetVersion)
	if err := currentReplies(batch, rep); err != nil {
		return err
	}
	deliverAll(batch)
	return nil
}

func keysOf(l *lane, batch []*op) (uids []uint64, names []string) {
	if l.space.Kind == ids.KindUID {
		uids = make([]uint64, len(batch))
		for i, o := range batch {
			uids[i] = o.id.Hi
		}
		return uids, nil
	}
	names = make([]string, len(batch))
	for i, o := range batch {
		names[i] = o.key.text
	}
	return nil, names
}

// allocReplies writes a reply's entries into the ops. It believes all of it or
// nothing: after an error what it wrote is not to be used.
func allocReplies(batch []*op, rep *seqpb.AllocReply) error {
	if err := failures(batch, len(rep.First), rep.Failures); err != nil {
		return err
	}
	for i, o := range batch {
		r := &o.reply
		if r.code != seqpb.Code_CODE_OK {
			continue
		}
		first := ids.Seq(rep.First[i])
		if first < 1 || first > ids.MaxSeq || ids.MaxSeq-first < ids.Seq(o.n-1) {
			return fmt.Errorf("%w: %d numbers from %d are outside [1, %d]", errMalformed, o.n, first, ids.MaxSeq)
		}
		r.value = first
		if o.hasID {
			r.windowSince = rep.WindowSinceMs
		}
	}
	for _, i := range rep.Replayed {
		if int(i) >= len(batch) || !batch[i].hasID {
			return fmt.Errorf("%w: key %d of %d is marked as replayed, without a request id", errMalformed, i, len(batch))
		}
		batch[i].reply.replayed = true
	}
	for _, d := range rep.Discontinuities {
		if d == nil || int(d.Index) >= len(batch) {
			return fmt.Errorf("%w: a discontinuity of no key", errMalformed)
		}
		r := &batch[d.Index].reply
		if d.From < 1 || d.From > d.To || r.code == seqpb.Code_CODE_OK && d.To != uint64(r.value)-1 {
			return fmt.Errorf("%w: hole %d..%d before number %d", errMalformed, d.From, d.To, r.value)
		}
		r.hole = &Hole{From: int64(d.From), To: int64(d.To)}
	}
	return nil
}

func currentReplies(batch []*op, rep *seqpb.CurrentReply) error {
	if err := failures(batch, len(rep.Current), rep.Failures); err != nil {
		return err
	}
	for i, o := range batch {
		if v := ids.Seq(rep.Current[i]); v <= ids.MaxSeq {
			o.reply.value = v
		} else {
			return fmt.Errorf("%w: current number %d is above %d", errMalformed, v, ids.MaxSeq)
		}
	}
	return nil
}

func hintOf(f *seqpb.Failure) hint {
	return hint{owner: f.OwnerAddr, set: f.OwnerSet, epoch: ids.Epoch(f.Epoch)}
}

// failures clears the replies of a batch and fills those in that failed.
func failures(batch []*op, answered int, list []*seqpb.Failure) error {
	n := len(batch)
	if answered != n {
		return fmt.Errorf("%w: %d keys answered of %d", errMalformed, answered, n)
	}
	for _, o := range batch {
		o.reply.reset()
	}
	for _, f := range list {
		if f == nil || int(f.Index) >= n || f.Code == seqpb.Code_CODE_OK {
			return fmt.Errorf("%w: a failure of no key", errMalformed)
		}
		batch[f.Index].reply = reply{
			code: f.Code, cause: &wire.Refused{Code: f.Code, Message: f.Message},
			hint: hintOf(f),
			cold: f.Code == seqpb.Code_CODE_BUSY || f.Code == seqpb.Code_CODE_NOT_READY,
		}
	}
	return nil
}
