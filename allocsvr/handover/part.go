package handover

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/seqsvr/seqsvr/allocsvr/dedupe"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

const (
	// partEntries is how many records are in one part: some 720 kB.
	partEntries = 20_000
	// messageBytes is about how much is sent at once, if it is not one part.
	messageBytes = 800_000
	// partsMax of a window: more records than a Table has by default.
	partsMax = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers a part and whose it is.
func checksum(req *seqpb.TakeWindowRequest, p *seqpb.WindowPart) uint32 {
	b := make([]byte, 0, 64+len(req.ClusterId))
	b = append(b, req.ClusterId...)
	for _, v := range []uint64{
		req.FromSession, req.ToSession, uint64(p.Section), p.Epoch, uint64(p.Part), uint64(p.Parts), p.TakenMs,
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, p.Window)
}

// split cuts an export into parts; there is always one. nil: it is too large to be sent.
func split(e dedupe.Export) [][]byte {
	n := max(1, (len(e.Entries)+partEntries-1)/partEntries)
	if n > partsMax {
		return nil
	}
	parts := make([][]byte, n)
	for i := range parts {
		from, to := i*partEntries, min((i+1)*partEntries, len(e.Entries))
		parts[i] = dedupe.Export{Since: e.Since, Entries: e.Entries[from:to]}.Append(nil)
	}
	return parts
}

// read verifies a part by itself.
func read(req *seqpb.TakeWindowRequest, p *seqpb.WindowPart) (dedupe.Export, error) {
	switch {
	case p == nil:
		return dedupe.Export{}, fmt.Errorf("an empty part")
	case p.Checksum != checksum(req, p):
		return dedupe.Export{}, fmt.Errorf("section %d, part %d: the checksum does not match", p.Section, p.Part)
	case p.Parts == 0 || p.Parts > partsMax || p.Part >= p.Parts:
		return dedupe.Export{}, fmt.Errorf("section %d: part %d of %d, of which at most %d are taken", p.Section, p.Part, p.Parts, partsMax)
	case p.Epoch == 0 || p.TakenMs == 0:
		return dedupe.Export{}, fmt.Errorf("section %d: epoch %d, taken at %d", p.Section, p.Epoch, p.TakenMs)
	}
	e, err := dedupe.DecodeExport(p.Window)
	switch {
	case err != nil:
		return dedupe.Export{}, fmt.Errorf("section %d, part %d: %w", p.Section, p.Part, err)
	case e.Since == 0 || len(e.Entries) > partEntries:
		return dedupe.Export{}, fmt.Errorf("section %d, part %d: %d records since %d", p.Section, p.Part, len(e.Entries), e.Since)
	}
	return e, nil
}
