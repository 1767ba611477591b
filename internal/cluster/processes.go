package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seqsvr/seqsvr/internal/rpc"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

// ProcessOptions of a cluster of processes. The zero value of a field is its default.
type ProcessOptions struct {
	// Bin has the programs storesvr and allocsvr; see BuildPrograms. Required.
	Bin string
	// Dir has data, configurations and logs; it is created. Required.
	Dir string
	// Name of the cluster. Default: of the directory, so that two clusters never mix.
	Name string
	// Sets is how many there are, and Stores and Allocs how many each has. Default
	// 1, 3 and 2. The first Set has the Sets' directory and owns everything at first.
	Sets, Stores, Allocs int
	// Redis serves the Redis protocol too.
	Redis bool

	LeaseTTL, RaftTimeout time.Duration
	Sections              uint32
	Step                  uint64
	// SnapshotThreshold and TrailingLogs of the stores.
	SnapshotThreshold, TrailingLogs uint64
	LogLevel                        string
	// Settings adds or replaces keys of a node's configuration file.
	Settings func(node string) map[string]string
	// Host is where a node lives. Default 127.0.0.1.
	Host func(node string) string
	// Wrap changes the command of a node, to run it in a network namespace, say.
	Wrap func(node string, argv []string) []string
	// Env adds to a node's environment.
	Env func(node string) []string
	// ReadyTimeout bounds the start of a node. Default 30 s.
	ReadyTimeout time.Duration
}

// Processes is a running cluster of processes.
type Processes struct {
	Stores []*Process
	Allocs []*Process
	opts   ProcessOptions
	arenas string
}

// StartProcesses starts a cluster and waits until it serves. ctx bounds the
// start only; end the cluster with Stop. When it fails nothing is left running.
func StartProcesses(ctx context.Context, o ProcessOptions) (_ *Processes, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	p := &Processes{opts: o}
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	if p.arenas, err = arenaDir(o.Dir); err != nil {
		return nil, err
	}
	for n := range p.opts.Sets {
		if err := p.addSet(setName(n)); err != nil {
			return nil, err
		}
	}
	for _, m := range p.all() {
		if err := m.Start(); err != nil {
			return nil, err
		}
	}
	// Also of those that have ended already: they say why.
	for _, m := range p.all() {
		if err := m.WaitReady(ctx); err != nil {
			return nil, err
		}
	}
	storesOf := func(set string) []string { return addrsOf(p.StoresOf(set)) }
	if err := createSets(ctx, p.opts.Sets, storesOf); err != nil {
		return nil, err
	}
	return p, p.WaitReady(ctx)
}

func (o *ProcessOptions) complete() error {
	if o.Bin == "" || o.Dir == "" {
		return errors.New("processes need a directory of programs and one to work in")
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	for _, program := range []string{"storesvr", "allocsvr"} {
		if _, err := os.Stat(filepath.Join(o.Bin, program)); err != nil {
			return fmt.Errorf("program missing: %w: build it first, see BuildPrograms", err)
		}
	}
	set(&o.Name, "test-"+strings.Map(nameRune, filepath.Base(o.Dir)))
	if len(o.Name) > 64 {
		o.Name = o.Name[:64]
	}
	set(&o.Sets, 1)
	set(&o.Stores, 3)
	set(&o.Allocs, 2)
	set(&o.ReadyTimeout, 30*time.Second)
	set(&o.LogLevel, "info")
	if o.Host == nil {
		o.Host = func(string) string { return "127.0.0.1" }
	}
	return nil
}

func nameRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
		return r
	}
	return '-'
}

// arenaDir is a folder for arenas in shared memory, else in dir.
func arenaDir(dir string) (string, error) {
	if d, err := os.MkdirTemp("/dev/shm", "seqsvr-test-"); err == nil {
		return d, nil
	}
	d := filepath.Join(dir, "arenas")
	return d, os.MkdirAll(d, 0o755)
}

func (p *Processes) all() []*Process {
	return append(append([]*Process{}, p.Stores...), p.Allocs...)
}

// addSet plans the founding members of a Set and its AllocSvrs.
func (p *Processes) addSet(set string) error {
	var peers []string
	names := Options{Sets: p.opts.Sets}
	for n := range p.opts.Stores {
		m, err := p.newStore(names.storeName(set, n), set)
		if err != nil {
			return err
		}
		peers = append(peers, m.ID+"="+m.RaftAddr+"/"+m.RPCAddr)
	}
	for _, m := range p.StoresOf(set) {
		m.settings["bootstrap"] = "true"
		m.settings["peers"] = "[" + strings.Join(peers, ", ") + "]"
	}
	for range p.opts.Allocs {
		if _, err := p.newAlloc(fmt.Sprintf("a%d", len(p.Allocs)+1), set); err != nil {
			return err
		}
	}
	return nil
}

// StoresOf and AllocsOf are a Set's processes.
func (p *Processes) StoresOf(set string) []*Process { return ofSet(p.Stores, set) }
func (p *Processes) AllocsOf(set string) []*Process { return ofSet(p.Allocs, set) }

func ofSet(ms []*Process, set string) (of []*Process) {
	for _, m := range ms {
		if m.Set == set {
			of = append(of, m)
		}
	}
	return of
}

func (p *Processes) newStore(id, set string) (*Process, error) {
	h := p.opts.Host(id)
	addrs, err := freeAddrs([]string{h, h, h})
	if err != nil {
		return nil, err
	}
	m := p.newProcess("storesvr", id)
	m.Set = set
	m.RPCAddr, m.RaftAddr, m.HTTPAddr = addrs[0], addrs[1], addrs[2]
	s := m.settings
	s["set"], s["data"] = set, m.DataDir
	if set != setName(0) {
		s["directory"] = "[" + strings.Join(p.StoreAddrs(), ", ") + "]"
	}
	s["rpc_listen"], s["raft_listen"], s["http_listen"] = m.RPCAddr, m.RaftAddr, m.HTTPAddr
	putIf(s, "lease_ttl", p.opts.LeaseTTL)
	putIf(s, "raft_timeout", p.opts.RaftTimeout)
	putIf(s, "sections", p.opts.Sections)
	putIf(s, "snapshot_threshold", p.opts.SnapshotThreshold)
	putIf(s, "trailing_logs", p.opts.TrailingLogs)
	p.Stores = append(p.Stores, m)
	return m, nil
}

func (p *Processes) newAlloc(id, set string) (*Process, error) {
	h := p.opts.Host(id)
	addrs, err := freeAddrs([]string{h, h, h})
	if err != nil {
		return nil, err
	}
	m := p.newProcess("allocsvr", id)
	m.Set = set
	m.RPCAddr, m.HTTPAddr = addrs[0], addrs[1]
	m.ArenaPath = filepath.Join(p.arenas, id)
	s := m.settings
	s["data"], s["arena"] = m.DataDir, m.ArenaPath
	s["rpc_listen"], s["http_listen"] = m.RPCAddr, m.HTTPAddr
	if p.opts.Redis {
		m.RedisAddr = addrs[2]
		s["redis_listen"] = m.RedisAddr
	}
	s["stores"] = "[" + strings.Join(addrsOf(p.StoresOf(set)), ", ") + "]"
	putIf(s, "step", p.opts.Step)
	p.Allocs = append(p.Allocs, m)
	return m, nil
}

func putIf[T comparable](s map[string]string, key string, v T) {
	var zero T
	if v != zero {
		s[key] = fmt.Sprint(v)
	}
}

func (p *Processes) newProcess(program, id string) *Process {
	dir := filepath.Join(p.opts.Dir, id)
	return &Process{
		ID: id, Program: program, opts: &p.opts,
		DataDir: filepath.Join(dir, "data"), LogPath: filepath.Join(dir, "log"),
		configPath: filepath.Join(dir, "config.yaml"),
		settings:   map[string]string{"cluster": p.opts.Name, "node": id, "log_level": p.opts.LogLevel},
	}
}

// AddAlloc starts one more AllocSvr of the first Set and waits until it is ready.
func (p *Processes) AddAlloc(ctx context.Context) (*Process, error) {
	m, err := p.newAlloc(fmt.Sprintf("a%d", len(p.Allocs)+1), setName(0))
	if err != nil {
		return nil, err
	}
	return m, m.StartReady(ctx)
}

// AddStore starts a store with an empty directory that is no member yet: make
// it one through administration.
func (p *Processes) AddStore() (*Process, error) {
	m, err := p.newStore(fmt.Sprintf("s%d", len(p.Stores)+1), setName(0))
	if err != nil {
		return nil, err
	}
	return m, m.Start()
}

// WaitReady waits until every running process is ready and every section has an owner.
func (p *Processes) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.ReadyTimeout)
	defer cancel()
	for _, m := range p.all() {
		if m.Running() {
			if err := m.WaitReady(ctx); err != nil {
				return err
			}
		}
	}
	for {
		rep, err := p.Status(ctx)
		if err == nil {
			if err = settled(rep); err == nil {
				return nil
			}
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("the cluster is not ready: %w", errors.Join(err, ctx.Err()))
		}
	}
}

func settled(rep *seqpb.StatusReply) error {
	for _, s := range rep.Sets {
		if s.Unowned > 0 || s.Moving > 0 {
			return fmt.Errorf("set %s: %d sections unowned, %d moving", s.Name, s.Unowned, s.Moving)
		}
	}
	return nil
}

// Addrs are the client addresses of the AllocSvrs.
func (p *Processes) Addrs() []string { return addrsOf(p.Allocs) }

// StoreAddrs are the RPC addresses of the first Set's stores.
func (p *Processes) StoreAddrs() []string { return addrsOf(p.StoresOf(setName(0))) }

func addrsOf(ms []*Process) (addrs []string) {
	for _, m := range ms {
		addrs = append(addrs, m.RPCAddr)
	}
	return addrs
}

// Status asks the running nodes in turn.
func (p *Processes) Status(ctx context.Context) (*seqpb.StatusReply, error) {
	err := errors.New("no node is running")
	for _, m := range p.all() {
		if !m.Running() {
			continue
		}
		var rep *seqpb.StatusReply
		if rep, err = statusOf(ctx, m.RPCAddr); err == nil {
			return rep, nil
		}
	}
	return nil, err
}

const statusTimeout = 2 * time.Second

func statusOf(ctx context.Context, addr string) (*seqpb.StatusReply, error) {
	c, err := rpc.DialAdmin(addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	rep, err := c.Status(ctx, &seqpb.StatusRequest{})
	if err != nil {
		return nil, err
	}
	if r := rep.Refusal; r != nil && r.Code != seqpb.RefusalCode_REFUSAL_NONE {
		return nil, errors.New(r.Message)
	}
	return rep, nil
}

// Leader is the store that leads the first Set.
func (p *Processes) Leader(ctx context.Context) (*Process, error) { return p.LeaderOf(ctx, setName(0)) }

// LeaderOf is the store that leads a Set, once there is one.
func (p *Processes) LeaderOf(ctx context.Context, set string) (*Process, error) {
	for {
		err := errors.New("no store is running")
		for _, asked := range p.StoresOf(set) {
			if !asked.Running() {
				continue
			}
			var rep *seqpb.StatusReply
			if rep, err = statusOf(ctx, asked.RPCAddr); err != nil {
				continue
			}
			if m := p.leaderIn(rep, set); m != nil {
				return m, nil
			}
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("set %s has no leader: %w", set, errors.Join(err, ctx.Err()))
		}
	}
}

func (p *Processes) leaderIn(rep *seqpb.StatusReply, set string) *Process {
	for _, of := range rep.Sets {
		for _, s := range of.Stores {
			for _, m := range p.StoresOf(set) {
				if s.Role == "leader" && s.Id == m.ID && m.Running() {
					return m
				}
			}
		}
	}
	return nil
}

// Stop ends all processes, those that do not stop in order by force, and
// removes the arenas. Data and logs stay in Dir.
func (p *Processes) Stop() {
	for _, tier := range [][]*Process{p.Allocs, p.Stores} {
		var wg sync.WaitGroup
		for _, m := range tier {
			wg.Go(func() { m.end() })
		}
		wg.Wait()
	}
	if p.arenas != "" {
		_ = os.RemoveAll(p.arenas)
	}
}

// Logs writes the ends of all logs, for a test that failed.
func (p *Processes) Logs(w io.Writer, bytesEach int64) {
	for _, m := range p.all() {
		fmt.Fprintf(w, "--- %s (%s)\n", m.ID, m.LogPath)
		f, err := os.Open(m.LogPath)
		if err != nil {
			fmt.Fprintln(w, err)
			continue
		}
		if st, err := f.Stat(); err == nil && st.Size() > bytesEach {
			_, _ = f.Seek(-bytesEach, io.SeekEnd)
		}
		_, _ = io.Copy(w, f)
		f.Close()
	}
}

// BuildPrograms builds the programs of this module that are named into dir.
func BuildPrograms(ctx context.Context, dir string, programs ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, p := range programs {
		args = append(args, "github.com/seqsvr/seqsvr/cmd/"+p)
	}
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}
