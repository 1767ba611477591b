package sets

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Range is the positions Lo..Last, both inclusive, of one space. Lo ≤ Last.
type Range struct {
	Space    ids.SpaceID
	Lo, Last ids.Position
}

// whole64 is 2^64, the exclusive end of a range that reaches the last position.
const whole64 = "18446744073709551616"

// ErrBadRange is wrapped by every refusal of a range; the wrapping says why.
var ErrBadRange = errors.New("invalid range")

// Whole is all positions that a space has.
func Whole(s ids.Space) Range {
	if s.Kind == ids.KindUID {
		return Range{Space: s.ID, Last: ids.Position(s.MaxUID)}
	}
	return Range{Space: s.ID, Last: math.MaxUint64}
}

// ParseRange reads LO-HI, HI exclusive: "0-1000" is the positions 0 to 999. HI
// may be 18446744073709551616 (2^64), or be left out to mean it.
func ParseRange(space ids.SpaceID, text string) (Range, error) {
	loText, hiText, ok := strings.Cut(text, "-")
	if !ok {
		return Range{}, fmt.Errorf("%w %q: want LO-HI, HI exclusive", ErrBadRange, text)
	}
	lo, err := parsePosition(loText)
	if err != nil {
		return Range{}, fmt.Errorf("%w %q: LO %q is not an integer in [0, 2^64)", ErrBadRange, text, loText)
	}
	if hiText == "" || hiText == whole64 {
		return Range{Space: space, Lo: lo, Last: math.MaxUint64}, nil
	}
	hi, err := parsePosition(hiText)
	if err != nil {
		return Range{}, fmt.Errorf("%w %q: HI %q is not an integer in [0, 2^64]", ErrBadRange, text, hiText)
	}
	if hi <= lo {
		return Range{}, fmt.Errorf("%w %q: empty, HI is exclusive and must be above LO", ErrBadRange, text)
	}
	return Range{Space: space, Lo: lo, Last: hi - 1}, nil
}

func parsePosition(s string) (ids.Position, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	return ids.Position(n), err
}

// Text is the LO-HI form that ParseRange reads, without the space.
func (r Range) Text() string {
	lo := strconv.FormatUint(uint64(r.Lo), 10)
	if r.Last == math.MaxUint64 {
		return lo + "-" + whole64
	}
	return lo + "-" + strconv.FormatUint(uint64(r.Last)+1, 10)
}

// In is SPACE:LO-HI with the name of the space, or its id if it is not among spaces.
func (r Range) In(spaces []ids.Space) string {
	for _, s := range spaces {
		if s.ID == r.Space {
			return s.Name + ":" + r.Text()
		}
	}
	return strconv.FormatUint(uint64(r.Space), 10) + ":" + r.Text()
}

// String is SPACE:LO-HI with the id of the space.
func (r Range) String() string { return r.In(nil) }

// Contains tells whether the position of the space lies in r.
func (r Range) Contains(space ids.SpaceID, p ids.Position) bool {
	return r.Space == space && r.Lo <= p && p <= r.Last
}

// Overlaps tells whether r and o share a position.
func (r Range) Overlaps(o Range) bool {
	return r.Space == o.Space && r.Lo <= o.Last && o.Lo <= r.Last
}

// Covers tells whether all of o lies in r.
func (r Range) Covers(o Range) bool {
	return r.Space == o.Space && r.Lo <= o.Lo && o.Last <= r.Last
}

// compare orders by space, then by position.
func (r Range) compare(o Range) int {
	switch {
	case r.Space != o.Space:
		if r.Space < o.Space {
			return -1
		}
		return 1
	case r.Lo != o.Lo:
		if r.Lo < o.Lo {
			return -1
		}
		return 1
	}
	return 0
}
