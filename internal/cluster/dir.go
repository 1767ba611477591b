package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// info is what a cluster's directory says of the cluster, and the lock on it.
type info struct {
	dir  string
	lock *os.File

	mu   sync.Mutex
	data infoData
}

type infoData struct {
	Stores int `json:"stores"`
	// Sets; 0, of a directory from before there were several, is 1.
	Sets int `json:"sets,omitempty"`
	// Addrs that the stores had last: they are taken again if they are free, so
	// that what others remember stays right.
	Addrs map[string]string `json:"addrs"`
}

const infoFile = "cluster.json"

// InUseError: another process has the directory.
type InUseError struct{ Dir, PID string }

func (e *InUseError) Error() string {
	by := ""
	if e.PID != "" {
		by = " (process " + e.PID + ")"
	}
	return fmt.Sprintf("%s is in use by another cluster%s: stop that one, or choose another directory", e.Dir, by)
}

// lockDir takes the directory for this process and reads what is known of it.
func lockDir(dir string, stores, sets int) (*info, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		pid := make([]byte, 20)
		n, _ := f.ReadAt(pid, 0)
		return nil, &InUseError{Dir: dir, PID: strings.TrimSpace(string(pid[:n]))}
	}
	i := &info{dir: dir, lock: f, data: infoData{Stores: stores, Sets: sets, Addrs: map[string]string{}}}
	if err := i.read(stores, sets); err != nil {
		return nil, errors.Join(err, i.unlock())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		return nil, errors.Join(err, i.unlock())
	}
	return i, nil
}

func (i *info) read(stores, sets int) error {
	path := filepath.Join(i.dir, infoFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var d infoData
	if err := json.Unmarshal(b, &d); err != nil || d.Stores < 1 {
		return fmt.Errorf("%s is damaged (%v): move it away if the number of stores, %d, is right", path, err, stores)
	}
	if d.Stores != stores {
		return fmt.Errorf("%s was founded with %d stores, not %d: start it with that number", i.dir, d.Stores, stores)
	}
	if max(d.Sets, 1) != sets {
		return fmt.Errorf("%s was founded with %d sets, not %d: start it with that number", i.dir, max(d.Sets, 1), sets)
	}
	if d.Addrs != nil {
		i.data.Addrs = d.Addrs
	}
	return nil
}

// listen opens the address that name had last, or a free port.
func (i *info) listen(name string) (net.Listener, error) {
	ln, err := net.Listen("tcp", i.addr(name))
	if err != nil {
		return nil, err
	}
	i.put(name, ln.Addr().String())
	return ln, nil
}

// addr is one to listen on: the last one if it is free, else any port.
func (i *info) addr(name string) string {
	i.mu.Lock()
	last := i.data.Addrs[name]
	i.mu.Unlock()
	if last != "" {
		if ln, err := net.Listen("tcp", last); err == nil {
			ln.Close()
			return last
		}
	}
	if ln, err := listenLow("127.0.0.1"); err == nil {
		defer ln.Close()
		return ln.Addr().String()
	}
	return "127.0.0.1:0"
}

func (i *info) put(name, addr string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.data.Addrs[name] = addr
}

func (i *info) save() error {
	i.mu.Lock()
	b, err := json.MarshalIndent(i.data, "", "  ")
	i.mu.Unlock()
	if err != nil {
		return err
	}
	path := filepath.Join(i.dir, infoFile)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (i *info) unlock() error {
	if i.lock == nil {
		return nil
	}
	err := i.lock.Close()
	i.lock = nil
	return err
}
