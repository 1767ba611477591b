package clock

import (
	"debug/elf"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// vdsoRead calls fn, which must be the vDSO's clock_gettime.
//
//go:noescape
func vdsoRead(fn uintptr, clock int64) (sec, nsec int64, failed int32)

// auxSysinfoEhdr is AT_SYSINFO_EHDR: where the kernel has mapped its vDSO.
const auxSysinfoEhdr = 33

// vdsoSize is more than any kernel's vDSO; what follows it is not read.
const vdsoSize = 1 << 20

// findVDSO looks for the vDSO's clock_gettime, through the file of this
// process's memory, so that a vDSO of another form is an error and not a fault.
func findVDSO() (fn uintptr, err error) {
	aux, err := unix.Auxv()
	if err != nil {
		return 0, fmt.Errorf("clock: no auxiliary vector: %w", err)
	}
	var base uintptr
	for _, a := range aux {
		if a[0] == auxSysinfoEhdr {
			base = a[1]
		}
	}
	if base == 0 || uint64(base) > math.MaxInt64-vdsoSize {
		return 0, fmt.Errorf("clock: the kernel offers no vDSO")
	}
	mem, err := os.Open("/proc/self/mem")
	if err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	defer mem.Close()
	image, err := elf.NewFile(io.NewSectionReader(mem, int64(base), vdsoSize))
	if err != nil {
		return 0, fmt.Errorf("clock: vDSO: %w", err)
	}
	symbols, err := image.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("clock: vDSO: %w", err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Section != elf.SHN_UNDEF && s.Value < vdsoSize {
			return base + uintptr(s.Value), nil
		}
	}
	return 0, fmt.Errorf("clock: the vDSO has no clock_gettime")
}
