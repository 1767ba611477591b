package wire

import (
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// gapsMax is above what a ledger holds (state.GapsMax), so that it may grow.
const gapsMax = 1024

// Gap is a declared hole: From..To (inclusive) may never have been issued.
type Gap struct {
	From, To ids.Seq
	// Cause is for people: "machine loss".
	Cause string
}

// Gaps is the message form of gaps.
func Gaps(gaps []Gap) []*seqpb.Gap {
	out := make([]*seqpb.Gap, 0, len(gaps))
	for _, g := range gaps {
		out = append(out, &seqpb.Gap{From: uint64(g.From), To: uint64(g.To), Cause: g.Cause})
	}
	return out
}

// ParseGaps reads gaps, which must ascend. The error is a *MalformedError.
func ParseGaps(pb []*seqpb.Gap) ([]Gap, error) {
	if len(pb) > gapsMax {
		return nil, malformed("gaps", "%d, at most %d are read", len(pb), gapsMax)
	}
	out := make([]Gap, 0, len(pb))
	var last uint64
	for _, g := range pb {
		if g == nil || g.From == 0 || g.From > g.To || ids.Seq(g.To) > ids.MaxSeq || len(g.Cause) > textBytesMax {
			return nil, malformed("gaps", "%+v is no hole", g)
		}
		if g.From <= last {
			return nil, malformed("gaps", "%d..%d is not after %d", g.From, g.To, last)
		}
		last = g.To
		out = append(out, Gap{From: ids.Seq(g.From), To: ids.Seq(g.To), Cause: g.Cause})
	}
	return out, nil
}
