package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/seqsvr/seqsvr/storesvr/state"
)

// Dir is a node's opened directory.
type Dir struct {
	Path  string
	Log   *RaftLog
	State *Store
	lock  *Lock

	mu       sync.Mutex
	identity Identity
}

// OpenDir opens the directory of the node that want names, creating it if it is
// empty, and refuses any other one. It never resets anything.
func OpenDir(path string, want Identity, o Options) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, &IOError{Path: path, Op: "create", Err: err}
	}
	lock, err := LockDir(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: path, lock: lock}
	if err := d.open(want, o); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Dir) open(want Identity, o Options) error {
	id, known, err := LoadIdentity(d.Path)
	if err != nil {
		return err
	}
	if known {
		if err := id.Check(d.Path, want); err != nil {
			return err
		}
	} else {
		if err := d.mustBeNew(); err != nil {
			return err
		}
		id = Identity{Format: FormatVersion, Cluster: want.Cluster, Set: want.Set, Node: want.Node}
		if err := id.Save(d.Path); err != nil {
			return err
		}
	}
	d.identity = id
	if id.Formatted {
		if err := d.mustBeWhole(); err != nil {
			return err
		}
	}
	if err := sweep(d.Path); err != nil {
		return err
	}
	// raft.db first: it says in which order things were made.
	if d.Log, err = OpenRaftLog(d.Path, !id.Formatted); err != nil {
		return err
	}
	if !id.Formatted {
		if err := Create(d.Path); err != nil {
			return err
		}
	}
	if d.State, err = Open(d.Path, o); err != nil {
		return err
	}
	_, meta, err := d.State.Load()
	if err != nil {
		return err
	}
	if err := d.matches(meta); err != nil {
		return err
	}
	if !id.Formatted {
		d.identity.Formatted = true
		return d.identity.Save(d.Path)
	}
	return nil
}

const (
	// snapshotsDir and halfSnapshot are how Raft names its snapshots.
	snapshotsDir = "snapshots"
	halfSnapshot = ".tmp"
)

// sweep removes what a process that dies while it writes a snapshot, or restores
// one, leaves behind. Each may be as large as the state, and nobody reads it.
func sweep(dir string) error {
	left := []string{filepath.Join(dir, StateFile+restoreSuffix)}
	snaps := filepath.Join(dir, snapshotsDir)
	entries, err := os.ReadDir(snaps)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &IOError{Path: snaps, Op: "list", Err: err}
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), halfSnapshot) {
			left = append(left, filepath.Join(snaps, e.Name()))
		}
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			return &IOError{Path: path, Op: "remove", Err: err}
		}
	}
	return nil
}

// mustBeNew: without an identity, nothing of a node may be there.
func (d *Dir) mustBeNew() error {
	for _, f := range []string{StateFile, RaftFile} {
		if _, err := os.Lstat(filepath.Join(d.Path, f)); err == nil {
			return &MissingError{Path: filepath.Join(d.Path, IdentityFile), Reason: "it is missing, but " + f + " is there", Remedy: remedyWipe}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return &IOError{Path: filepath.Join(d.Path, f), Op: "stat", Err: err}
		}
	}
	return nil
}

// mustBeWhole: a node that has lived has both files. Starting without one would
// forget a vote or a bound.
func (d *Dir) mustBeWhole() error {
	for _, f := range []string{StateFile, RaftFile} {
		if _, err := os.Lstat(filepath.Join(d.Path, f)); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return &MissingError{Path: filepath.Join(d.Path, f), Reason: "this node has run before, but the file is gone", Remedy: remedyWipe}
			}
			return &IOError{Path: filepath.Join(d.Path, f), Op: "stat", Err: err}
		}
	}
	return nil
}

// matches refuses a state file that was put here from elsewhere.
func (d *Dir) matches(meta *state.Meta) error {
	if meta == nil || meta.Genesis.Sections == 0 {
		return nil
	}
	found := Identity{Cluster: meta.Genesis.Cluster, Set: meta.Genesis.Set, Node: d.identity.Node, ClusterID: meta.Genesis.ClusterID}
	err := found.Check(d.Path, d.identity)
	var re *RefusedError
	if errors.As(err, &re) {
		re.Path = filepath.Join(d.Path, StateFile)
		re.Remedy = "it belongs to another node's directory: " + remedyWipe
	}
	return err
}

// Identity is the directory's identity as saved.
func (d *Dir) Identity() Identity {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.identity
}

// SaveIdentity replaces what the node has learned of itself.
func (d *Dir) SaveIdentity(clusterID string, joined bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := d.identity
	if clusterID != "" {
		id.ClusterID = clusterID
	}
	id.Joined = id.Joined || joined
	if id == d.identity {
		return nil
	}
	if err := id.Save(d.Path); err != nil {
		return err
	}
	d.identity = id
	return nil
}

// Close closes what is open and gives the directory up. It does not flush.
func (d *Dir) Close() error {
	var errs []error
	if d.State != nil {
		errs = append(errs, d.State.Close())
	}
	if d.Log != nil {
		errs = append(errs, d.Log.Close())
	}
	errs = append(errs, d.lock.Release())
	return errors.Join(errs...)
}
