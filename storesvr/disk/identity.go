package disk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// FormatVersion is of the directory: identity and the log's framing. See stateFormat, too.
const FormatVersion = 1

// Names of the files in a node's directory.
const (
	IdentityFile = "identity.json"
	StateFile    = "state.db"
	RaftFile     = "raft.db"
	LockFile     = "lock"
)

// Identity says whose directory it is.
type Identity struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	Set     string `json:"set"`
	Node    string `json:"node"`
	// ClusterID is "" until the Genesis was applied here.
	ClusterID string `json:"cluster_id,omitempty"`
	// Formatted: state.db and raft.db were made. From then on a missing one is a loss.
	Formatted bool `json:"formatted"`
	// Joined: the node has once caught up with a leader, so that its vote and
	// its acknowledgements can be trusted. False on a new or a wiped directory.
	Joined bool `json:"joined"`
}

// LoadIdentity reads dir's identity; ok is false when there is none.
func LoadIdentity(dir string) (id Identity, ok bool, err error) {
	path := filepath.Join(dir, IdentityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, false, nil
	}
	if err != nil {
		return Identity{}, false, &IOError{Path: path, Op: "read", Err: err}
	}
	// The format alone first: a newer one may have fields that we do not know.
	var f struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return Identity{}, false, &CorruptError{Path: path, What: "not an identity", Err: err}
	}
	if f.Format != FormatVersion {
		return Identity{}, false, wrongFormat(path, f.Format, FormatVersion)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&id); err != nil {
		return Identity{}, false, &CorruptError{Path: path, What: "not an identity", Err: err}
	}
	return id, true, nil
}

// Check refuses an identity other than the wanted one. An empty ClusterID on either side is not compared.
func (id Identity) Check(dir string, want Identity) error {
	path := filepath.Join(dir, IdentityFile)
	const remedy = "point the node at its own directory, or give it an empty one"
	for _, c := range []struct{ what, found, want string }{
		{"cluster", id.Cluster, want.Cluster},
		{"set", id.Set, want.Set},
		{"node", id.Node, want.Node},
	} {
		if c.found != c.want {
			return &RefusedError{Path: path, What: c.what, Found: c.found, Want: c.want, Remedy: remedy}
		}
	}
	if id.ClusterID != "" && want.ClusterID != "" && id.ClusterID != want.ClusterID {
		return &RefusedError{Path: path, What: "cluster id", Found: id.ClusterID, Want: want.ClusterID, Remedy: remedy}
	}
	return nil
}

// Save writes the identity so that after a crash there is the old one or the new one.
func (id Identity) Save(dir string) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return writeFileAtomic(filepath.Join(dir, IdentityFile), append(b, '\n'))
}

func writeFileAtomic(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return &IOError{Path: tmp, Op: "create", Err: err}
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return &IOError{Path: tmp, Op: "write", Err: err}
	}
	if err := os.Rename(tmp, path); err != nil {
		return &IOError{Path: path, Op: "rename", Err: err}
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return &IOError{Path: dir, Op: "open", Err: err}
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return &IOError{Path: dir, Op: "sync", Err: err}
	}
	return nil
}
