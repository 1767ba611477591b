package storesvr

import (
	"context"
	"fmt"
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
	// digests are of its blocks.
	digests []uint64
	// held is how many of them an owner at work had.
	held int
	// there: the target has them already.
	there bool
	// keys and checksum are of the records as they were when the range was frozen.
	keys     uint64
	checksum uint64
}

// take takes the records, and digests them while there is time.
func (s *slice) take(records []state.KeyedRecord) {
	s.records, s.digests = records, blockDigests(records)
}

// add takes a page more.
func (s *slice) add(p *page) {
	s.held += p.held
	switch {
	case len(s.records) == 0:
		s.records, s.digests = p.records, p.digests
	case len(s.records)%blockKeys == 0:
		s.records, s.digests = append(s.records, p.records...), append(s.digests, p.digests...)
	default:
		s.take(append(s.records, p.records...))
	}
}

// split cuts a slice after about so many keys; no position is split. rest is nil if it is
// hardly longer than that. What would be left over is spread: few keys have the cost that
// any part has.
func (s *slice) split(keys int) (rest *slice) {
	n, most := len(s.records), keys+keys/8
	if n <= most {
		return nil
	}
	parts := (n + most - 1) / most
	keys = (n + parts - 1) / parts
	for keys < len(s.records) && s.records[keys].Key.Position() == s.records[keys-1].Key.Position() {
		keys++
	}
	if keys >= len(s.records) {
		return nil
	}
	rest = &slice{r: s.r, there: s.there}
	s.r.Last = s.records[keys-1].Key.Position()
	rest.r.Lo = s.r.Last + 1
	rest.take(s.records[keys:])
	s.take(s.records[:keys])
	return rest
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
		if err := v.rest.wait(ctx); err != nil {
			return nil, err
		}
		p, err := v.export(ctx, v.from, left, after, limit-len(s.records))
		if err != nil {
			return nil, err
		}
		s.add(p)
		if after = p.last; !p.done && len(s.records) < limit {
			continue
		}
		if !p.done {
			s.r.Last = p.last.Position()
		}
		return s, nil
	}
}

// copyRange reads all records of a range.
func (v *mover) copyRange(ctx context.Context, r sets.Range) (*slice, error) {
	s := &slice{r: r}
	after := ids.Key{}
	for {
		p, err := v.export(ctx, v.from, r, after, exportMax)
		if err != nil {
			return nil, err
		}
		s.add(p)
		if p.done {
			return s, nil
		}
		after = p.last
	}
}

// page of an export. It goes on after last, if it is not done; digests are of its blocks.
type page struct {
	records []state.KeyedRecord
	digests []uint64
	held    int
	last    ids.Key
	done    bool
}

func (v *mover) export(ctx context.Context, set string, r sets.Range, after ids.Key, limit int) (*page, error) {
	rep, last, err := v.askExport(ctx, set, &seqpb.ExportRequest{Range: rangePB(r), Limit: uint32(limit)}, after)
	if err != nil {
		return nil, err
	}
	d := state.Digester{Every: blockKeys}
	records, err := state.DecodePage(rep.Records, &d)
	if err != nil {
		return nil, err
	}
	if d.Sum() != rep.Checksum || len(records) != int(rep.Count) {
		return nil, fmt.Errorf("a page of range %s from set %q was damaged on its way", r, set)
	}
	return &page{records: records, digests: d.Blocks(), held: int(rep.Held), last: last, done: rep.Done}, nil
}

func (v *mover) askExport(ctx context.Context, set string, q *seqpb.ExportRequest, after ids.Key) (rep *seqpb.ExportReply, last ids.Key, err error) {
	q.ClusterId, q.Set = v.n.clusterID(), set
	if after != (ids.Key{}) {
		q.After = &seqpb.KeyRef{Space: uint32(after.Space), Hi: after.Hi, Lo: after.Lo}
	}
	rep, err = askSet(ctx, v.n, set, exportTimeout, func(ctx context.Context, c SetsConn) (*seqpb.ExportReply, error) { return c.Export(ctx, q) })
	if err == nil && !rep.Done {
		last, err = keyOf(rep.Last)
	}
	return rep, last, err
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
