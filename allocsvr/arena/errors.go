package arena

import (
	"errors"
	"fmt"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// ErrNone: there is no arena of an earlier process.
var ErrNone = errors.New("no arena of an earlier process")

// ErrNotReady: the arena was neither reset nor adopted, or is closed.
var ErrNotReady = errors.New("arena has no session yet")

// InUseError: another process holds the arena.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("arena %s is in use by another process: stop that process, or give this node an arena path of its own", e.Path)
}

// FullError: no memory could be reserved for another key.
type FullError struct {
	Path string
	// Need is how many bytes the file would have had, Limit how many it may have
	// (0: the file system refused).
	Need, Limit int64
	Err         error
}

func (e *FullError) Error() string {
	if e.Limit > 0 {
		return fmt.Sprintf("arena %s is full: %d bytes needed, %d allowed: raise the arena's size limit, let idle keys be handed back sooner, or add a node", e.Path, e.Need, e.Limit)
	}
	return fmt.Sprintf("arena %s cannot grow to %d bytes: %v: make its file system larger (containers get 64 MB of /dev/shm unless told otherwise), or put the arena on another path", e.Path, e.Need, e.Err)
}

func (e *FullError) Unwrap() error { return e.Err }

// ErrNoPage: the key would need a page of its own.
var ErrNoPage = errors.New("no page has a place for the key")

// Reason is why an arena is not trusted.
type Reason string

const (
	ReasonTorn       Reason = "torn header"
	ReasonMagic      Reason = "not an arena"
	ReasonOldFormat  Reason = "older format"
	ReasonNewFormat  Reason = "newer format"
	ReasonHeader     Reason = "header checksum"
	ReasonCluster    Reason = "other cluster"
	ReasonNode       Reason = "other node"
	ReasonBoot       Reason = "other boot"
	ReasonSize       Reason = "wrong size"
	ReasonSections   Reason = "section table"
	ReasonDirectory  Reason = "slot directory"
	ReasonCell       Reason = "cell"
	ReasonIntent     Reason = "intent"
	ReasonUnreadable Reason = "unreadable"
)

// UntrustedError says why what an earlier process left cannot be used. The
// remedy is Reset and a new session; the numbers that only it knew are a hole
// that StoreSvr declares.
type UntrustedError struct {
	Path   string
	Reason Reason
	// Off and Len are the bytes that failed; Len 0: the file as a whole.
	Off, Len int64
	Detail   string
}

func (e *UntrustedError) Error() string {
	at := ""
	if e.Len > 0 {
		at = fmt.Sprintf(" at bytes %d–%d", e.Off, e.Off+e.Len-1)
	}
	return fmt.Sprintf("arena %s is not trusted: %s%s: %s", e.Path, e.Reason, at, e.Detail)
}

// ShapeError: the arena was made for another division into sections or for other spaces.
type ShapeError struct{ Path, Detail string }

func (e *ShapeError) Error() string {
	return fmt.Sprintf("arena %s does not fit this cluster: %s: it must be reset", e.Path, e.Detail)
}

// EpochError: a section may only be opened at a higher epoch than ever before.
type EpochError struct {
	Section      ids.Section
	Stored, Want ids.Epoch
}

func (e *EpochError) Error() string {
	return fmt.Sprintf("section %d cannot open at epoch %d: it was already open at %d; wait for StoreSvr to assign it anew", e.Section, e.Want, e.Stored)
}

// SectionClosedError: no key can be added to a section that is not open.
type SectionClosedError struct{ Section ids.Section }

func (e *SectionClosedError) Error() string {
	return fmt.Sprintf("section %d is not open in the arena", e.Section)
}

// CorruptCellError is the panic of a cell that changed by itself: bad memory, or a
// cell used after its guard was left. The process should end; its successor will
// not trust the arena.
type CorruptCellError struct{ Word, Salt uint64 }

func (e *CorruptCellError) Error() string {
	return fmt.Sprintf("arena cell is corrupt (word %#016x, salt %#016x): restart this process and test the machine's memory", e.Word, e.Salt)
}
