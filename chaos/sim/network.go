package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Errors of the simulated network. Refused is the only one that promises that
// the request did not reach its target; everything else leaves the outcome open.
var (
	ErrRefused = errors.New("simulated network: connection refused")
	ErrReset   = errors.New("simulated network: connection reset")
	ErrTimeout = errors.New("simulated network: no answer in time")
)

// Weather is how the network behaves between any two hosts.
type Weather struct {
	DelayMin, DelayMax time.Duration
	// Loss of a request, and of a reply, each.
	Loss float64
	// Straggle is the chance that a message takes up to StraggleMax instead.
	Straggle    float64
	StraggleMax time.Duration
	// Duplicate is the chance that a request is delivered a second time, up to
	// DuplicateMax later; the answer to the copy goes nowhere.
	Duplicate    float64
	DuplicateMax time.Duration
}

// calm is a local network without faults.
func calm() Weather {
	return Weather{DelayMin: 50 * time.Microsecond, DelayMax: 500 * time.Microsecond}
}

// rough is what random runs use between their storms.
func rough() Weather {
	return Weather{
		DelayMin: 50 * time.Microsecond, DelayMax: 2 * time.Millisecond,
		Loss:     0.001,
		Straggle: 0.01, StraggleMax: 60 * time.Millisecond,
		Duplicate: 0.02, DuplicateMax: 6 * time.Second,
	}
}

// Message is what a hook sees of a request, a reply or a stream's message.
type Message struct {
	From, To string
	// Method is the RPC's name, or "Raft" and the type of the request.
	Method string
	// Reply is set for the answer of a unary call.
	Reply bool
	// Request is what a reply answers.
	Request *Message
	// Copy is set for the second delivery of a duplicated request.
	Copy bool
	// Body is the message itself; a hook may read it.
	Body any
}

// Verdict is what a hook decides for a message. The zero Verdict leaves it to the weather.
type Verdict struct {
	// Exact delivers it after the usual delay, with no loss or duplication.
	Exact bool
	Drop  bool
	// Hold delays it until the channel is closed.
	Hold <-chan struct{}
	// Again delivers a copy of a request when the channel is closed.
	Again <-chan struct{}
}

// Network carries messages between the processes of one run.
type Network struct {
	seed   uint64
	events *ring

	mu      sync.Mutex
	weather Weather
	hosts   map[string]*host
	links   map[[2]string]*link
	hook    func(*Message) Verdict
	// downs has the newest stream's way back, by caller and method, for scenarios that forge a message.
	downs map[[2]string]any
	// arrived, if set, is told of every unary request as it reaches its process.
	arrived func(*process, *Message) answerer
	// down is closed at the end of the run: whatever still waits gives up.
	down   chan struct{}
	closed bool
	// flights counts goroutines that carry messages.
	flights sync.WaitGroup
}

// answerer follows one request at its server: leaves is told when the reply
// leaves the process.
type answerer interface{ leaves(reply *Message) }

// host is a machine's place in the network; its process comes and goes.
type host struct {
	name string
	proc *process
	// gate is non-nil while the host is paused; it is closed when it resumes.
	gate chan struct{}
}

// link is one direction between two hosts.
type link struct {
	sent uint64
	name uint64
	// cut is non-nil while nothing passes; it is closed when the link heals.
	cut chan struct{}
}

// process is one incarnation of a program on a host.
type process struct {
	host string
	// ctx ends when the process dies.
	ctx      context.Context
	cancel   context.CancelFunc
	services services
	// silent: the machine is gone, so nobody resets its connections.
	silent bool
	// handlers counts the requests and streams that it serves.
	handlers sync.WaitGroup
}

func newNetwork(seed uint64, events *ring) *Network {
	return &Network{
		seed: seed, events: events, weather: calm(),
		hosts: map[string]*host{}, links: map[[2]string]*link{}, downs: map[[2]string]any{},
		down: make(chan struct{}),
	}
}

func hostOf(addr string) string {
	name, _, _ := strings.Cut(addr, ":")
	return name
}

func (n *Network) hostLocked(name string) *host {
	h := n.hosts[name]
	if h == nil {
		h = &host{name: name}
		n.hosts[name] = h
	}
	return h
}

func (n *Network) linkLocked(from, to string) *link {
	k := [2]string{from, to}
	l := n.links[k]
	if l == nil {
		l = &link{name: nameHash(from + ">" + to)}
		n.links[k] = l
	}
	return l
}

// start makes a process that can call out; listen lets others reach it.
func (n *Network) start(host string) *process {
	ctx, cancel := context.WithCancel(context.Background())
	return &process{host: host, ctx: ctx, cancel: cancel}
}

func (n *Network) listen(p *process, s services) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.services = s
	n.hostLocked(p.host).proc = p
}

// kill ends a process as the network sees it. Silent: its machine is lost too.
func (n *Network) kill(p *process, silent bool) {
	n.mu.Lock()
	p.silent = silent
	if h := n.hostLocked(p.host); h.proc == p {
		h.proc = nil
	}
	n.mu.Unlock()
	p.cancel()
}

// enter finds the process at addr, nil if there is none, and counts a handler
// of it; the caller must call handlers.Done.
func (n *Network) enter(addr string) *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.hostLocked(hostOf(addr)).proc
	if p != nil {
		p.handlers.Add(1)
	}
	return p
}

func (n *Network) lookup(addr string) *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hostLocked(hostOf(addr)).proc
}

// pause holds everything that goes in and out of a host until it is resumed.
func (n *Network) pause(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hostLocked(name); h.gate == nil {
		h.gate = make(chan struct{})
	}
}

func (n *Network) resume(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hostLocked(name); h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

// cut stops one direction between two hosts.
func (n *Network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.linkLocked(from, to); l.cut == nil {
		l.cut = make(chan struct{})
	}
}

func (n *Network) heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.healLocked(n.linkLocked(from, to))
}

func (n *Network) healLocked(l *link) {
	if l.cut != nil {
		close(l.cut)
		l.cut = nil
	}
}

// healAll ends every partition and pause.
func (n *Network) healAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		n.healLocked(l)
	}
	for _, h := range n.hosts {
		if h.gate != nil {
			close(h.gate)
			h.gate = nil
		}
	}
}

func (n *Network) setWeather(w Weather) {
	n.mu.Lock()
	n.weather = w
	n.mu.Unlock()
}

// Hook lets a scenario decide the fate of single messages. It must not block.
func (n *Network) Hook(f func(*Message) Verdict) {
	n.mu.Lock()
	n.hook = f
	n.mu.Unlock()
}

// close gives up everything that is still on its way and waits for it.
func (n *Network) close() {
	n.mu.Lock()
	if !n.closed {
		n.closed = true
		close(n.down)
	}
	n.mu.Unlock()
	n.healAll()
	n.flights.Wait()
}

// fly runs a part of a message's way; it reports false once the network is down.
func (n *Network) fly(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.flights.Add(1)
	go func() {
		defer n.flights.Done()
		f()
	}()
	return true
}

// plan is the fate of one message, settled when it is sent.
type plan struct {
	delay time.Duration
	lost  bool
	// again is when a copy of it is delivered; 0 for never.
	again time.Duration
	// waitsOut: a partition delays it (as a retransmission would) rather than losing it.
	waitsOut bool
	verdict  Verdict
}

func (n *Network) plan(m *Message) plan {
	n.mu.Lock()
	l := n.linkLocked(m.From, m.To)
	l.sent++
	r := newSource(n.seed, l.name, l.sent)
	w, hook := n.weather, n.hook
	n.mu.Unlock()

	p := plan{delay: r.between(w.DelayMin, w.DelayMax), waitsOut: r.chance(0.5)}
	if r.chance(w.Straggle) {
		p.delay = r.between(w.DelayMax, w.StraggleMax)
	}
	p.lost = r.chance(w.Loss)
	if r.chance(w.Duplicate) {
		p.again = r.between(time.Millisecond, w.DuplicateMax)
		if r.chance(0.7) { // most copies come soon; some when nobody remembers
			p.again = r.between(time.Millisecond, 50*time.Millisecond)
		}
	}
	if hook != nil {
		p.verdict = hook(m)
		if p.verdict != (Verdict{}) {
			p.lost, p.again, p.waitsOut = p.verdict.Drop, 0, true
		}
	}
	return p
}

// carry takes a planned message over its link; false means that it never arrives.
func (n *Network) carry(m *Message, p plan) bool {
	if p.lost {
		n.events.add("lost        %s", describe{m})
		return false
	}
	if p.verdict.Hold != nil && !n.await(p.verdict.Hold) {
		return false
	}
	if !n.passGate(m.From) || !n.sleep(p.delay) {
		return false
	}
	for {
		n.mu.Lock()
		cut := n.linkLocked(m.From, m.To).cut
		n.mu.Unlock()
		if cut == nil {
			break
		}
		if !p.waitsOut {
			n.events.add("cut off     %s", describe{m})
			return false
		}
		if !n.await(cut) || !n.sleep(p.delay) {
			return false
		}
	}
	return n.passGate(m.To)
}

// passGate waits while the host is paused.
func (n *Network) passGate(host string) bool {
	for {
		n.mu.Lock()
		gate := n.hostLocked(host).gate
		n.mu.Unlock()
		if gate == nil {
			return true
		}
		if !n.await(gate) {
			return false
		}
	}
}

func (n *Network) await(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-n.down:
		return false
	}
}

func (n *Network) sleep(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-n.down:
		return false
	}
}

// describe prints a message only when the ring is dumped.
type describe struct{ m *Message }

func (d describe) String() string {
	kind := "request"
	if d.m.Reply {
		kind = "reply"
	}
	if d.m.Copy {
		kind = "copy"
	}
	return fmt.Sprintf("%s→%s %s %s %s", d.m.From, d.m.To, d.m.Method, kind, brief(d.m.Body))
}
