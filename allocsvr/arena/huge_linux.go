package arena

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps the first n bytes of a file, shared, from an address at which its
// huge pages can be mapped as such. unmap undoes it.
func mapFile(fd int, n int64) (mem []byte, unmap func() error, err error) {
	whole := uintptr(n) + hugePageBytes
	room, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, err
	}
	unmap = func() error { return unix.MunmapPtr(room, whole) }
	at := unsafe.Add(room, -uintptr(room)&(hugePageBytes-1))
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		if uerr := unmap(); uerr != nil {
			return nil, nil, fmt.Errorf("%w, and: %w", err, uerr)
		}
		return nil, nil, err
	}
	return unsafe.Slice((*byte)(at), n), unmap, nil
}

// makeHuge has the kernel put one huge page in place of what there is of mem.
func makeHuge(mem []byte) error { return unix.Madvise(mem, unix.MADV_COLLAPSE) }
