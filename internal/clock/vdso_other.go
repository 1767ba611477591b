//go:build !(linux && amd64)

package clock

import "errors"

func findVDSO() (fn uintptr, err error) {
	return 0, errors.New("clock: no vDSO call on this platform")
}

func vdsoRead(uintptr, int64) (sec, nsec int64, failed int32) { return 0, 0, 1 }
