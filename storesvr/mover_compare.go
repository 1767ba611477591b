package storesvr

import (
	"slices"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/storesvr/state"
)

const (
	// blockKeys records are compared at once: of what differs, whole blocks are read.
	blockKeys = 512
	// blocksMax: when one in so many blocks has changed, reading the range whole is quicker.
	blocksMax = 8
)

// digests are of a range in a Set: of each block of blockKeys records in order.
type digests struct {
	keys   int
	blocks []uint64
	// ragged: a page ended within a block, so that blocks of two reads are not of the same records.
	ragged bool
}

func (d *digests) same(o *digests) bool { return d.keys == o.keys && d.sum() == o.sum() }

// sum is the checksum of the whole: digests add up.
func (d *digests) sum() (sum uint64) {
	for _, b := range d.blocks {
		sum += b
	}
	return sum
}

func blockDigests(records []state.KeyedRecord) []uint64 {
	d := state.Digester{Every: blockKeys}
	for i := range records {
		d.Add(&records[i])
	}
	return d.Blocks()
}

// readDigests reads what a Set has of a part.
func (v *mover) readDigests(set string, s *slice) (d digests, err error) {
	after := ids.Key{}
	for {
		q := &seqpb.ExportRequest{Range: rangePB(s.r), Limit: exportMax, Digests: true, DigestEvery: blockKeys}
		rep, last, err := v.askExport(v.l.ctx, set, q, after)
		if err != nil {
			return d, err
		}
		d.keys += int(rep.Count)
		d.blocks = append(d.blocks, rep.Digest...)
		if rep.Done {
			return d, nil
		}
		d.ragged = d.ragged || rep.Count%blockKeys != 0
		after = last
	}
}

// equal brings what has changed since the copy to the target, and makes sure that
// both have the same. All that it goes by was read after the range had been vacated.
func (v *mover) equal(s *slice) error {
	source, target, err := v.compare(s)
	if err == nil && !source.same(&target) {
		// What was brought ahead may have been swept meanwhile.
		source, target, err = v.bringAll(s, true)
	}
	if err != nil {
		return err
	}
	if !source.same(&target) {
		return &DifferError{Range: s.r, Source: source.sum(), Target: target.sum(), SourceKeys: source.keys, TargetKeys: target.keys}
	}
	s.keys, s.checksum = uint64(source.keys), source.sum()
	return nil
}

// compare brings what differs from the copy. Where most of the last part did, as of a
// range that is in use, nothing is compared before.
func (v *mover) compare(s *slice) (source, target digests, err error) {
	if v.hot {
		return v.bringAll(s, false)
	}
	err = both(
		func() (err error) { source, err = v.readDigests(v.from, s); return err },
		func() (err error) { target, err = v.readDigests(v.to, s); return err },
	)
	if err != nil || source.same(&target) {
		return source, target, err
	}
	return v.bringChanged(s, source, target)
}

// bringChanged brings the blocks that differ, or what changed of the whole range if they are many.
func (v *mover) bringChanged(s *slice, source, target digests) (digests, digests, error) {
	if source.ragged || target.ragged || source.keys != len(s.records) || target.keys != source.keys {
		return v.bringAll(s, false)
	}
	var changed []int
	for i, d := range source.blocks {
		if d != s.digests[i] || d != target.blocks[i] {
			changed = append(changed, i)
		}
	}
	if len(changed) > 1 && len(changed)*blocksMax > len(source.blocks) {
		return v.bringAll(s, false)
	}
	for _, i := range changed {
		after := ids.Key{}
		if i > 0 {
			after = s.records[i*blockKeys-1].Key
		}
		block, err := v.export(v.l.ctx, v.from, s.r, after, blockKeys)
		if err == nil {
			err = v.importAll(s, block.records, false)
		}
		if err != nil {
			return source, target, err
		}
		q := &seqpb.ExportRequest{Range: rangePB(s.r), Limit: blockKeys, Digests: true}
		rep, _, err := v.askExport(v.l.ctx, v.to, q, after)
		if err != nil {
			return source, target, err
		}
		if last := i == len(source.blocks)-1; rep.Done != last {
			return v.bringAll(s, false) // something is there that is in no block
		}
		target.blocks[i] = rep.Checksum
	}
	return source, target, nil
}

// bringAll reads the range, brings what differs from the copy, or all of it, and reads
// what the target has then.
func (v *mover) bringAll(s *slice, all bool) (source, target digests, err error) {
	now, err := v.copyRange(v.l.ctx, s.r)
	if err != nil {
		return source, target, err
	}
	missing := changedRecords(s.records, now.records)
	v.hot = len(missing)*blocksMax > len(now.records)
	v.changed = len(missing)
	if all {
		missing = now.records
	}
	if err := v.importAll(s, missing, false); err != nil {
		return source, target, err
	}
	target, err = v.readDigests(v.to, s)
	return digests{keys: len(now.records), blocks: now.digests}, target, err
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
