package clock

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// boottime reads CLOCK_BOOTTIME at the vDSO function fn, or by system call if
// fn is 0. Both are the same clock, read when asked: nothing is cached.
type boottime struct{ fn uintptr }

// Boottime is CLOCK_BOOTTIME, the clock of production: CLOCK_MONOTONIC, which
// package time uses, stands still while the machine is suspended.
//
// Where the kernel offers it, it is read without a system call (docs/decisions/017).
func Boottime() Clock { return boottime{probedVDSO()} }

// probedVDSO is the vDSO's function if it has shown to be right, else 0.
var probedVDSO = sync.OnceValue(func() uintptr {
	fn, err := findVDSO()
	if err != nil || probe(boottime{fn}.Now) != nil {
		return 0
	}
	return fn
})

// probes is how many readings of the vDSO must each lie between two of the system call.
const probes = 16

var errUnlike = errors.New("clock: the vDSO's CLOCK_BOOTTIME is not that of the system call")

// probe compares a reading of another kind with the system call's.
func probe(read func() time.Duration) error {
	for range probes {
		before, now, after := bySystemCall(), read(), bySystemCall()
		if now < before || now > after {
			return errUnlike
		}
	}
	return nil
}

func (b boottime) Now() time.Duration {
	if b.fn != 0 {
		if sec, nsec, failed := vdsoRead(b.fn, unix.CLOCK_BOOTTIME); failed == 0 {
			return time.Duration(sec*int64(time.Second) + nsec)
		}
	}
	return bySystemCall()
}

func bySystemCall() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Without a clock no lease can be honoured; Linux has had this one since 2.6.39.
		panic(fmt.Sprintf("clock: CLOCK_BOOTTIME cannot be read: %v", err))
	}
	return time.Duration(ts.Nano())
}
