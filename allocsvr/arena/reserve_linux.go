package arena

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes [off, off+n) exist, backed by real memory or disk, before it is touched.
func reserve(f *os.File, off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, off, n)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP):
			return writeZeros(f, off, n)
		}
		return err
	}
}
