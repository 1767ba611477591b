//go:build race

package allocsvr

const raceEnabled = true
