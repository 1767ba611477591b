package redis

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// poller tells which of many connections have something to do. Notices are
// edge-triggered: each comes once, and whoever gets it remembers it.
type poller struct {
	fd, wakeFD int
	events     []unix.EpollEvent
}

// wakeSlot is the slot that stands for a call of wake.
const wakeSlot = -1

// eventsMax are taken in one go.
const eventsMax = 128

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	p := &poller{fd: fd, events: make([]unix.EpollEvent, eventsMax)}
	if p.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := p.add(p.wakeFD, wakeSlot); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) close() {
	unix.Close(p.wakeFD)
	unix.Close(p.fd)
}

// add has notices of fd come with that slot, until fd is closed.
func (p *poller) add(fd int, slot int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: slot}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch a connection: %w", os.NewSyscallError("epoll_ctl", err))
	}
	return nil
}

// wake has wait return. It may be called by anyone, until close.
func (p *poller) wake() {
	// The count need not be read: each write is an edge.
	one := [8]byte{1}
	_, _ = unix.Write(p.wakeFD, one[:])
}

// wait returns notices; without block, perhaps none.
//
// It blocks in the system call, as package net never would: the runtime takes the
// processor away from a call that is not over after 20 µs if there is other work
// for it. Yielding before costs a seventh of the whole at one command a packet;
// waiting through the runtime's own poller, which was not measured, hands each
// notice to another thread.
func (p *poller) wait(block bool) ([]unix.EpollEvent, error) {
	timeout := 0
	if block {
		timeout = -1
	}
	for {
		n, err := unix.EpollWait(p.fd, p.events, timeout)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("epoll_wait", err)
		}
		return p.events[:n], nil
	}
}
