//go:build !linux

package arena

import (
	"errors"

	"golang.org/x/sys/unix"
)

func mapFile(fd int, n int64) (mem []byte, unmap func() error, err error) {
	mem, err = unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return mem, func() error { return unix.Munmap(mem) }, err
}

func makeHuge([]byte) error { return errors.ErrUnsupported }
