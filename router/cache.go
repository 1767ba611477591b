package router

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// CacheError: a cache file cannot be used. A missing file is not one; see Load.
// Going on without it costs one fetch of the table.
type CacheError struct {
	Path string
	Err  error
}

func (e *CacheError) Error() string {
	return fmt.Sprintf("route cache %s: %v: it is replaced at the next change of routes; delete it if this comes again", e.Path, e.Err)
}

func (e *CacheError) Unwrap() error { return e.Err }

// Load reads a table saved by Save. A missing file is os.ErrNotExist; one that
// is torn, corrupt, foreign or of another format is a *CacheError.
func Load(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, CacheBytesMax+1))
	if err == nil && len(b) > CacheBytesMax {
		err = fmt.Errorf("larger than %d bytes", CacheBytesMax)
	}
	if err != nil {
		return nil, &CacheError{Path: path, Err: err}
	}
	t, err := Decode(b)
	if err != nil {
		return nil, &CacheError{Path: path, Err: err}
	}
	return t, nil
}

// Save replaces the file in one step: after a crash it holds the old table or
// the new one. A reader never sees a part of one.
func Save(path string, t *Table) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".tmp*")
	if err != nil {
		return &CacheError{Path: path, Err: err}
	}
	defer func() {
		if err != nil {
			err = &CacheError{Path: path, Err: errors.Join(err, os.Remove(f.Name()))}
		}
	}()
	_, err = f.Write(Encode(t))
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	// The directory is not synced: losing the rename in a power cut leaves the
	// older table, which is only slower.
	return os.Rename(f.Name(), path)
}
