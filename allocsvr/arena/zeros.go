package arena

import "os"

// writeZeros reserves by writing, where the file system knows no other way.
func writeZeros(f *os.File, off, n int64) error {
	zeros := make([]byte, min(n, 1<<16))
	for n > 0 {
		k, err := f.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off += int64(k)
		n -= int64(k)
	}
	return nil
}
