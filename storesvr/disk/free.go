package disk

import "syscall"

// Free is how many bytes may still be written to the file system of a directory.
func Free(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, &IOError{Path: dir, Op: "statfs", Err: err}
	}
	return s.Bavail * uint64(s.Bsize), nil
}
