package storesvr

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/sets"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// importsMax bounds the imports of one move in flight.
	importsMax = 4
	// vacateWait is how long the source is asked to wait for its sessions at once.
	vacateWait = time.Second
	// exportTimeout bounds one page.
	exportTimeout = 5 * time.Second
)

// slice is the range of a part with a copy of its records.
type slice struct {
	part    sets.Part
	r       sets.Range
	records []state.KeyedRecord
	// there: the target has them already.
	there bool
	// checksum is of the records as they were when the range was frozen.
	checksum uint64
}

// DifferError: source and target do not have the same records of a frozen range.
type DifferError struct {
	Range                  sets.Range
	Source, Target         uint64
	SourceKeys, TargetKeys int
}

func (e *DifferError) Error() string {
	return fmt.Sprintf("range %s: the source has %d keys with checksum %016x, the target %d with %016x: nothing was moved; verify both sets' stores",
		e.Range, e.SourceKeys, e.Source, e.TargetKeys, e.Target)
}

// copySlice reads about PartKeys records from where a range begins, and cuts the
// range there.
func (v *mover) copySlice(ctx context.Context, left sets.Range) (*slice, error) {
	s := &slice{r: left}
	limit := int(v.size.keys.Load())
	after := ids.Key{}
	for {
		if err := v.frozen.wait(ctx); err != nil {
			return nil, err
		}
		page, last, done, _, err := v.export(ctx, v.from, left, after, limit-len(s.records), false)
		if err != nil {
			return nil, err
		}
		s.records = append(s.records, page...)
		if done {
			return s, nil
		}
		if after = last; len(s.records) >= limit {
			s.r.Last = last.Position()
			return s, nil
		}
	}
}

// copyRange reads all records of a range.
func (v *mover) copyRange(ctx context.Context, r sets.Range) (*slice, error) {
	s := &slice{r: r}
	records, _, err := v.readAll(ctx, v.from, r, false)
	s.records = records
	return s, err
}

// readAll reads a range, or only its checksum and how many keys there are.
func (v *mover) readAll(ctx context.Context, set string, r sets.Range, digest bool) (records []state.KeyedRecord, sum seqsum, err error) {
	after := ids.Key{}
	for {
		page, last, done, part, err := v.export(ctx, set, r, after, exportMax, digest)
		if err != nil {
			return nil, sum, err
		}
		records = append(records, page...)
		sum.keys += part.keys
		sum.checksum += part.checksum
		if done {
			return records, sum, nil
		}
		after = last
	}
}

// seqsum adds up over pages.
type seqsum struct {
	keys     int
	checksum uint64
}

func (v *mover) export(ctx context.Context, set string, r sets.Range, after ids.Key, limit int, digest bool) (page []state.KeyedRecord, last ids.Key, done bool, sum seqsum, err error) {
	q := &seqpb.ExportRequest{ClusterId: v.n.clusterID(), Set: set, Range: rangePB(r), Limit: uint32(limit), Digests: digest}
	if after != (ids.Key{}) {
		q.After = &seqpb.KeyRef{Space: uint32(after.Space), Hi: after.Hi, Lo: after.Lo}
	}
	rep, err := askSet(ctx, v.n, set, exportTimeout, func(ctx context.Context, c SetsConn) (*seqpb.ExportReply, error) { return c.Export(ctx, q) })
	if err != nil {
		return nil, last, false, sum, err
	}
	sum = seqsum{int(rep.Count), rep.Checksum}
	if !digest {
		if page, err = state.DecodeRecords(rep.Records); err != nil {
			return nil, last, false, sum, err
		}
		if got := state.Digest(page); got != rep.Checksum || len(page) != sum.keys {
			return nil, last, false, sum, fmt.Errorf("a page of range %s from set %q was damaged on its way", r, set)
		}
	}
	if rep.Done {
		return page, last, true, sum, nil
	}
	last, err = keyOf(rep.Last)
	return page, last, false, sum, err
}

func rangePB(r sets.Range) *seqpb.Range {
	return &seqpb.Range{Space: uint32(r.Space), Lo: uint64(r.Lo), Last: uint64(r.Last)}
}

// importAll brings records to the target. With open it sends at least one command,
// which opens the part there.
func (v *mover) importAll(s *slice, records []state.KeyedRecord, open bool) error {
	send := func(chunk []state.KeyedRecord) error {
		return v.command(v.to, state.Import{Move: v.id, Part: s.part, Range: s.r, From: v.from, Records: chunk})
	}
	if open && len(records) == 0 {
		return send(nil)
	}
	return sendChunks(records, send)
}

// sendChunks sends records in commands of a size that is allowed, a few at a time.
func sendChunks(records []state.KeyedRecord, send func([]state.KeyedRecord) error) (failed error) {
	errs, flying := make(chan error, importsMax), 0
	for flying > 0 || len(records) > 0 && failed == nil {
		if flying == importsMax || len(records) == 0 || failed != nil {
			if err := <-errs; failed == nil {
				failed = err
			}
			flying--
			continue
		}
		n, bytes := 0, 0
		for n < len(records) && n < state.ImportMax && bytes < exportBytesMax {
			bytes += exportBytes(&records[n])
			n++
		}
		chunk := records[:n]
		records = records[n:]
		flying++
		go func() { errs <- send(chunk) }()
	}
	return failed
}

// awaitVacated waits until no session holds anything of the frozen range.
func (v *mover) awaitVacated(s *slice) error {
	q := &seqpb.PartStateRequest{ClusterId: v.n.clusterID(), Set: v.from, Move: uint64(v.id), WaitMs: millis(vacateWait)}
	for {
		rep, err := askSet(v.l.ctx, v.n, v.from, vacateWait+setCallTimeout, func(ctx context.Context, c SetsConn) (*seqpb.PartStateReply, error) { return c.PartState(ctx, q) })
		if err != nil {
			return err
		}
		switch {
		case sets.Part(rep.Part) != s.part:
			return &refusedError{v.from, "a part", state.RefusedOldPart, ""}
		case rep.Phase == state.OutThawed.String():
			return &refusedError{v.from, "to stay frozen", state.RefusedThawed, "its sessions did not vacate the range in time"}
		case rep.Waiting == 0:
			return nil
		}
	}
}

// equal brings what has changed since the copy to the target, and makes sure
// that both have the same.
func (v *mover) equal(s *slice) error {
	var now []state.KeyedRecord
	var source, target seqsum
	err := both(
		func() (err error) { now, source, err = v.readAll(v.l.ctx, v.from, s.r, false); return err },
		func() (err error) { _, target, err = v.readAll(v.l.ctx, v.to, s.r, true); return err },
	)
	if err != nil {
		return err
	}
	// What changed is enough, unless records that were brought ahead were swept meanwhile.
	for _, missing := range [][]state.KeyedRecord{changedRecords(s.records, now), now} {
		if source == target {
			break
		}
		if err := v.importAll(s, missing, false); err != nil {
			return err
		}
		if _, target, err = v.readAll(v.l.ctx, v.to, s.r, true); err != nil {
			return err
		}
	}
	if source != target {
		return &DifferError{Range: s.r, Source: source.checksum, Target: target.checksum, SourceKeys: source.keys, TargetKeys: target.keys}
	}
	s.records, s.checksum = now, source.checksum
	return nil
}

// changedRecords are those of now that were not there before, as they are. Both are in key order.
func changedRecords(before, now []state.KeyedRecord) []state.KeyedRecord {
	var out []state.KeyedRecord
	i := 0
	for _, kr := range now {
		for i < len(before) && before[i].Key.Compare(kr.Key) < 0 {
			i++
		}
		if i < len(before) && before[i].Key == kr.Key && sameRecord(&before[i], &kr) {
			continue
		}
		out = append(out, kr)
	}
	return out
}

func sameRecord(a, b *state.KeyedRecord) bool {
	return a.Floor == b.Floor && a.Bound == b.Bound && a.Epoch == b.Epoch && slices.Equal(a.Gaps, b.Gaps)
}
