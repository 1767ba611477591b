// Package buildinfo says what program this is, from what the Go tool wrote into it.
package buildinfo

import (
	"runtime"
	"runtime/debug"
	"sync"
)

// Version is set by release builds: -ldflags "-X …/internal/buildinfo.Version=1.2.3".
var Version = ""

// Info describes a build.
type Info struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Time    string `json:"time,omitempty"`
	Dirty   bool   `json:"dirty,omitempty"`
	Go      string `json:"go"`
}

// Get reads it once.
var Get = sync.OnceValue(func() Info {
	i := Info{Version: Version, Go: runtime.Version()}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				i.Commit = s.Value
			case "vcs.time":
				i.Time = s.Value
			case "vcs.modified":
				i.Dirty = s.Value == "true"
			}
		}
		if i.Version == "" && b.Main.Version != "(devel)" {
			i.Version = b.Main.Version
		}
	}
	if i.Version == "" {
		i.Version = "devel"
	}
	return i
})

// String is the version with the commit, short.
func (i Info) String() string {
	s := i.Version
	if len(i.Commit) >= 12 && i.Version == "devel" {
		s += "-" + i.Commit[:12]
	}
	return s
}
