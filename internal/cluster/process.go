package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one node as a process. Its methods may be called from any
// goroutine, but starts and ends of one process come one at a time.
type Process struct {
	// ID of the node; Program it runs: storesvr or allocsvr; Set that it is of.
	ID, Program, Set string
	// Where it is reached; "" for what it does not have.
	RPCAddr, RaftAddr, RedisAddr, HTTPAddr string
	// DataDir has its state, LogPath what it said in all its lives.
	DataDir, LogPath string
	// ArenaPath of an AllocSvr.
	ArenaPath string

	opts       *ProcessOptions
	configPath string
	settings   map[string]string

	mu   sync.Mutex
	life *life
}

// life is one run of the program.
type life struct {
	cmd   *exec.Cmd
	ready chan struct{}
	ended chan struct{}
	err   error // of Wait; valid once ended
}

const (
	termTimeout = 30 * time.Second
	// pdeath: the kernel ends the child when the thread that made it ends. Go
	// keeps its threads, unless a goroutine that was locked to one ends.
	pdeath = syscall.SIGKILL
)

// Start starts the process; it is an error if it runs.
func (m *Process) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life != nil && !m.life.over() {
		return fmt.Errorf("%s runs already", m.ID)
	}
	if err := m.writeConfig(); err != nil {
		return err
	}
	log, err := os.OpenFile(m.LogPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	argv := []string{filepath.Join(m.opts.Bin, m.Program), "--config", m.configPath}
	if m.opts.Wrap != nil {
		argv = m.opts.Wrap(m.ID, argv)
	}
	l := &life{cmd: exec.Command(argv[0], argv[1:]...), ready: make(chan struct{}), ended: make(chan struct{})}
	l.cmd.Stderr = log
	l.cmd.Env = os.Environ()
	if m.opts.Env != nil {
		l.cmd.Env = append(l.cmd.Env, m.opts.Env(m.ID)...)
	}
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: pdeath, Setpgid: true}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	if err := l.cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", m.ID, err), log.Close())
	}
	m.life = l
	go l.watch(out, log)
	return nil
}

// watch copies the output to the log, notes the ready line, and collects the end.
func (l *life) watch(out io.Reader, log *os.File) {
	defer close(l.ended)
	defer log.Close()
	s := bufio.NewScanner(out)
	ready := false
	for s.Scan() {
		if !ready && strings.HasPrefix(s.Text(), "ready ") {
			ready = true
			close(l.ready)
		}
		fmt.Fprintln(log, s.Text())
	}
	l.err = l.cmd.Wait()
}

func (l *life) over() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (m *Process) writeConfig() error {
	s := map[string]string{}
	for k, v := range m.settings {
		s[k] = v
	}
	if m.opts.Settings != nil {
		for k, v := range m.opts.Settings(m.ID) {
			s[k] = v
		}
	}
	var keys []string
	for k := range s {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%s: %s\n", k, s[k])
	}
	if err := os.MkdirAll(filepath.Dir(m.configPath), 0o755); err != nil {
		return err
	}
	return os.WriteFile(m.configPath, []byte(b.String()), 0o644)
}

func (m *Process) current() *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life
}

// Running tells whether the process exists, paused or not.
func (m *Process) Running() bool {
	l := m.current()
	return l != nil && !l.over()
}

// PID of the process; 0 when it does not run.
func (m *Process) PID() int {
	l := m.current()
	if l == nil || l.over() {
		return 0
	}
	return l.cmd.Process.Pid
}

// WaitReady waits for the ready line.
func (m *Process) WaitReady(ctx context.Context) error {
	l := m.current()
	if l == nil {
		return fmt.Errorf("%s was not started", m.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, m.opts.ReadyTimeout)
	defer cancel()
	select {
	case <-l.ready:
		return nil
	case <-l.ended:
		return fmt.Errorf("%s ended before it was ready: %w: %s", m.ID, l.err, m.lastLine())
	case <-ctx.Done():
		return fmt.Errorf("%s is not ready: %w: %s", m.ID, ctx.Err(), m.lastLine())
	}
}

// StartReady starts and waits until it is ready.
func (m *Process) StartReady(ctx context.Context) error {
	if err := m.Start(); err != nil {
		return err
	}
	return m.WaitReady(ctx)
}

// lastLine of the log, for errors.
func (m *Process) lastLine() string {
	b, err := os.ReadFile(m.LogPath)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

func (m *Process) signal(s syscall.Signal) error {
	l := m.current()
	if l == nil || l.over() {
		return fmt.Errorf("%s does not run", m.ID)
	}
	return l.cmd.Process.Signal(s)
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (m *Process) Kill() error {
	if err := m.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-m.current().ended
	return nil
}

// Term sends SIGTERM, waits for the end, and answers what the exit status says.
func (m *Process) Term(ctx context.Context) error {
	if err := m.signal(syscall.SIGTERM); err != nil {
		return err
	}
	l := m.current()
	select {
	case <-l.ended:
		if l.err != nil {
			return fmt.Errorf("%s: %w: %s", m.ID, l.err, m.lastLine())
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s does not stop: %w", m.ID, ctx.Err())
	}
}

// Pause stops the process with SIGSTOP; Resume lets it go on.
func (m *Process) Pause() error  { return m.signal(syscall.SIGSTOP) }
func (m *Process) Resume() error { return m.signal(syscall.SIGCONT) }

// Wait waits for the process to end by itself and answers its exit status.
func (m *Process) Wait(ctx context.Context) error {
	l := m.current()
	if l == nil {
		return fmt.Errorf("%s was not started", m.ID)
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Restart starts the process again, after killing it if it runs, and waits until it is ready.
func (m *Process) Restart(ctx context.Context) error {
	if m.Running() {
		if err := m.Kill(); err != nil {
			return err
		}
	}
	return m.StartReady(ctx)
}

// RemoveArena removes the shared memory of an AllocSvr that does not run, as
// the loss of its machine would.
func (m *Process) RemoveArena() error {
	if m.Running() {
		return fmt.Errorf("%s runs", m.ID)
	}
	return errors.Join(os.RemoveAll(m.ArenaPath), os.RemoveAll(m.DataDir))
}

// RemoveData removes the state of a store that does not run, as the loss of its disk would.
func (m *Process) RemoveData() error {
	if m.Running() {
		return fmt.Errorf("%s runs", m.ID)
	}
	return os.RemoveAll(m.DataDir)
}

// end stops the process in order if it can, else by force.
func (m *Process) end() {
	if !m.Running() {
		return
	}
	_ = m.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), termTimeout)
	defer cancel()
	if m.Term(ctx) != nil && m.Running() {
		_ = m.Kill()
	}
}
