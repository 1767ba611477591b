package sets

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Refusals of the directory. Each names the thing and what to do.

// Text is what an error says to an operator, who knows the spaces by name; its
// Error has their ids.
func Text(err error, spaces []ids.Space) string {
	var of interface {
		text(spaces []ids.Space) string
	}
	if errors.As(err, &of) {
		return of.text(spaces)
	}
	return err.Error()
}

// SameSetError: a move from a Set to itself.
type SameSetError struct{ Set string }

func (e *SameSetError) Error() string {
	return fmt.Sprintf("set %q cannot move anything to itself: name another target", e.Set)
}

// NoSuchSetError: the directory does not know the Set.
type NoSuchSetError struct{ Set string }

func (e *NoSuchSetError) Error() string {
	return fmt.Sprintf("there is no set %q: create it first, or look at the list of sets", e.Set)
}

// NameTakenError: a Set of that name exists, with other stores.
type NameTakenError struct{ Set string }

func (e *NameTakenError) Error() string {
	return fmt.Sprintf("there is a set %q already, with other stores: choose another name, or update it", e.Set)
}

// BadNameError: not a name for a Set.
type BadNameError struct{ Name string }

func (e *BadNameError) Error() string {
	return fmt.Sprintf("set name %q: want 1 to %d of the characters a-z A-Z 0-9 . _ -", e.Name, NameBytesMax)
}

// BadStoresError: not a list of StoreSvr addresses.
type BadStoresError struct{ Set, Reason string }

func (e *BadStoresError) Error() string {
	return fmt.Sprintf("stores of set %q: %s", e.Set, e.Reason)
}

// TooManySetsError: SetsMax.
type TooManySetsError struct{}

func (e *TooManySetsError) Error() string {
	return fmt.Sprintf("there are %d sets already, the most there may be: retire one first", SetsMax)
}

// InUseError: the Set cannot be retired.
type InUseError struct{ Set, Reason string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("set %q cannot be retired: %s", e.Set, e.Reason)
}

// StillOwnsError: the Set cannot be retired, as it owns Range, and perhaps more.
type StillOwnsError struct {
	Set   string
	Range Range
}

func (e *StillOwnsError) Error() string { return e.text(nil) }

func (e *StillOwnsError) text(spaces []ids.Space) string {
	return fmt.Sprintf("set %q cannot be retired: it owns %s: move everything away first", e.Set, e.Range.In(spaces))
}

// EmptyRangeError: a range that ends before it starts, or a move of nothing.
type EmptyRangeError struct{ Range Range }

func (e *EmptyRangeError) Error() string { return e.text(nil) }

func (e *EmptyRangeError) text(spaces []ids.Space) string {
	return fmt.Sprintf("range %s is empty: its end must be above its start", e.Range.In(spaces))
}

// NothingToMoveError: the Set owns nothing.
type NothingToMoveError struct{ Set string }

func (e *NothingToMoveError) Error() string {
	return fmt.Sprintf("set %q owns nothing: there is nothing to move", e.Set)
}

// NotOwnedError: part of a range belongs to another Set (Entry is where).
type NotOwnedError struct {
	Range Range
	By    string
	Entry Entry
}

func (e *NotOwnedError) Error() string { return e.text(nil) }

func (e *NotOwnedError) text(spaces []ids.Space) string {
	return fmt.Sprintf("range %s is not wholly owned by set %q: %s: name only what it owns", e.Range.In(spaces), e.By, e.Entry.in(spaces))
}

// OverlappingMoveError: another move, under way, has some of the range.
type OverlappingMoveError struct {
	Range Range
	Move  MoveID
	Has   Range
}

func (e *OverlappingMoveError) Error() string { return e.text(nil) }

func (e *OverlappingMoveError) text(spaces []ids.Space) string {
	return fmt.Sprintf("range %s overlaps %s of move %d, which is under way: wait for it, or abort it", e.Range.In(spaces), e.Has.In(spaces), e.Move)
}

// OverlappingRangesError: two ranges of one move share positions.
type OverlappingRangesError struct{ A, B Range }

func (e *OverlappingRangesError) Error() string { return e.text(nil) }

func (e *OverlappingRangesError) text(spaces []ids.Space) string {
	return fmt.Sprintf("ranges %s and %s overlap: name every position once", e.A.In(spaces), e.B.In(spaces))
}

// TooManyMovesError: no more moves may be under way, or this one has too many ranges.
type TooManyMovesError struct{ Reason string }

func (e *TooManyMovesError) Error() string { return "too many moves: " + e.Reason }

// NoSuchMoveError: the directory does not know the move (any more).
type NoSuchMoveError struct{ Move MoveID }

func (e *NoSuchMoveError) Error() string {
	return fmt.Sprintf("there is no move %d, or it ended long ago: look at the list of moves", e.Move)
}

// MoveOverError: the move has ended, or is ending.
type MoveOverError struct {
	Move  MoveID
	State MoveState
}

func (e *MoveOverError) Error() string {
	return fmt.Sprintf("move %d is %s: start another one for what is left", e.Move, e.State)
}

// PartError: not what the part at hand can go through.
type PartError struct {
	Move MoveID
	Part Part
	// At is the part at hand, and its state.
	At    Part
	State PartState
	Want  string
}

func (e *PartError) Error() string {
	return fmt.Sprintf("part %d of move %d: %s; the part at hand is %d, which is %s", e.Part, e.Move, e.Want, e.At, e.State)
}

// PartRangeError: a part does not begin where the last one ended, or ends outside the move's range.
type PartRangeError struct {
	Move        MoveID
	Range, Want Range
}

func (e *PartRangeError) Error() string { return e.text(nil) }

func (e *PartRangeError) text(spaces []ids.Space) string {
	return fmt.Sprintf("part %s of move %d: it must begin where %s does and end in it", e.Range.In(spaces), e.Move, e.Want.In(spaces))
}

func checkName(name string) error {
	bad := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if name == "" || len(name) > NameBytesMax || strings.ContainsFunc(name, bad) {
		return &BadNameError{Name: name}
	}
	return nil
}

func checkStores(set string, stores []string, mayBeNone bool) error {
	switch {
	case len(stores) == 0 && !mayBeNone:
		return &BadStoresError{Set: set, Reason: "none given: name the RPC address of each"}
	case len(stores) > StoresMax:
		return &BadStoresError{Set: set, Reason: fmt.Sprintf("%d given, at most %d are taken", len(stores), StoresMax)}
	}
	seen := map[string]bool{}
	for _, s := range stores {
		switch {
		case s == "" || len(s) > AddressBytesMax:
			return &BadStoresError{Set: set, Reason: fmt.Sprintf("address %q: want 1 to %d bytes", s, AddressBytesMax)}
		case seen[s]:
			return &BadStoresError{Set: set, Reason: fmt.Sprintf("address %q is named twice", s)}
		}
		seen[s] = true
	}
	return nil
}
