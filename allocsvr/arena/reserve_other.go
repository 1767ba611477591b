//go:build !linux

package arena

import "os"

func reserve(f *os.File, off, n int64) error { return writeZeros(f, off, n) }
