package clock

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// requireVDSO returns the vDSO's function. That it is missing is a failure on
// the platform that production runs on.
func requireVDSO(t testing.TB) uintptr {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the vDSO is called on amd64 only")
	}
	fn, err := findVDSO()
	if err != nil {
		t.Fatal(err)
	}
	return fn
}

func TestBoottimeWithoutSystemCallIsTheSameClock(t *testing.T) {
	fn := requireVDSO(t)
	for range 1000 {
		if err := probe(boottime{fn}.Now); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProbeRefusesAnotherClock(t *testing.T) {
	fn := requireVDSO(t)
	realtime := func() time.Duration {
		sec, nsec, _ := vdsoRead(fn, unix.CLOCK_REALTIME)
		return time.Duration(sec)*time.Second + time.Duration(nsec)
	}
	if err := probe(realtime); err == nil {
		t.Fatal("CLOCK_REALTIME passes for CLOCK_BOOTTIME")
	}
	if _, _, failed := vdsoRead(fn, 1<<20); failed == 0 {
		t.Fatal("a clock that does not exist was read")
	}
}

// The vDSO runs on the goroutine's stack, which is small at first and moves when it grows.
func TestBoottimeOnFreshAndDeepStacks(t *testing.T) {
	c := boottime{requireVDSO(t)}
	var deep func(n int) time.Duration
	deep = func(n int) time.Duration {
		var pad [128]byte
		pad[n%len(pad)] = byte(n)
		if n == 0 {
			return c.Now() + time.Duration(pad[1])
		}
		before := c.Now()
		if after := deep(n - 1); after < before {
			t.Errorf("went back by %v at depth %d", before-after, n)
		}
		return before
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() { deep(i) })
	}
	wg.Wait()
}

// Signals, collections and the profiler interrupt it at any instruction.
func TestBoottimeUnderSignals(t *testing.T) {
	c := boottime{requireVDSO(t)}
	if f, err := os.CreateTemp(t.TempDir(), "profile"); err != nil {
		t.Fatal(err)
	} else if err := pprof.StartCPUProfile(f); err == nil {
		defer pprof.StopCPUProfile()
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR2)
	defer signal.Stop(got)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := c.Now()
			for range 200_000 {
				now := c.Now()
				if now < last {
					t.Errorf("went back by %v", last-now)
				}
				last = now
			}
		})
	}
	for range 200 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR2)
		runtime.GC()
	}
	wg.Wait()
}

func TestBoottimeDoesNotAllocate(t *testing.T) {
	c := Boottime()
	if n := testing.AllocsPerRun(1000, func() { c.Now() }); n != 0 {
		t.Fatalf("%v allocations a reading", n)
	}
}

func BenchmarkBoottimeBySystemCall(b *testing.B) {
	for b.Loop() {
		bySystemCall()
	}
}
