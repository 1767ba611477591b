package disk

import (
	"fmt"
	"strconv"
)

// RefusedError says that a directory is not what this node may open.
type RefusedError struct {
	Path string
	// What was compared: "cluster", "set", "node", "format" …
	What        string
	Found, Want string
	Remedy      string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: %s is %q, want %q: %s", e.Path, e.What, e.Found, e.Want, e.Remedy)
}

// MissingError says that a part of a directory that has lived is gone.
type MissingError struct {
	Path   string
	Reason string
	Remedy string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Path, e.Reason, e.Remedy)
}

// InUseError says that another process holds the directory.
type InUseError struct{ Path string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("%s is already in use by another process: stop that one, or give this one a directory of its own", e.Path)
}

// CorruptError says that stored bytes are not what was written. They are never used.
type CorruptError struct {
	Path string
	What string
	Err  error
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("%s is corrupt: %s", e.Path, e.What)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + ": " + remedyWipe
}

func (e *CorruptError) Unwrap() error { return e.Err }

// IOError says that the disk failed under the store.
type IOError struct {
	Path string
	Op   string
	Err  error
}

func (e *IOError) Error() string {
	return fmt.Sprintf("%s: %s failed: %v: check the disk and its free space, then start the node again", e.Path, e.Op, e.Err)
}

func (e *IOError) Unwrap() error { return e.Err }

// SnapshotError says why a snapshot stream was refused. The state that was there before stands.
type SnapshotError struct {
	What string
	Err  error
}

func (e *SnapshotError) Error() string {
	s := "snapshot refused: " + e.What
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *SnapshotError) Unwrap() error { return e.Err }

const remedyWipe = "move the whole directory away (never a part of it) and start the node again, so that it takes the state from its peers"

// wrongFormat refuses a file of another format than this program's.
func wrongFormat(path string, found, want int) error {
	remedy := "run the version of storesvr that wrote it, or "
	if found > want {
		remedy += "a newer one"
	} else {
		remedy += remedyWipe
	}
	return &RefusedError{Path: path, What: "format", Found: strconv.Itoa(found), Want: strconv.Itoa(want), Remedy: remedy}
}
