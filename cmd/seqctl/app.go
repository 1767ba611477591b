package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/seqsvr/seqsvr/internal/cli"
)

const (
	defaultServer  = "127.0.0.1:7100"
	defaultTimeout = 5 * time.Second
	serverVariable = "SEQ_SERVER"
)

// app is what all commands share: the global flags and where output goes.
type app struct {
	out output
	err io.Writer
	// colours: stdout is a terminal whose user wants them.
	colours bool
	// bars: stderr is a terminal, where progress is drawn in place.
	bars bool

	server, space, format string
	timeout               time.Duration
	// timeoutGiven: --timeout also bounds what has no bound by default.
	timeoutGiven bool
	// servers is --server, split; not empty once a command runs.
	servers []string
}

func newApp(stdout, stderr io.Writer) *app {
	plain := os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	return &app{
		out: output{w: stdout}, err: stderr,
		colours: isTerminal(stdout) && !plain,
		bars:    isTerminal(stderr) && !plain,
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func isTerminalReader(r io.Reader) bool {
	f, ok := r.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}

// output keeps the first failure to write, so that lost data is not taken for success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	o.err = err
	return n, err
}

func outputLost(err error) error {
	return fmt.Errorf("the output could not be written: %w: what the command did is done; see seqctl current and status", err)
}

// check validates the global flags.
func (a *app) check() error {
	if a.format != "table" && a.format != "json" {
		return cli.Usagef("--output %q: want table or json", a.format)
	}
	if a.timeout <= 0 {
		return cli.Usagef("--timeout %v: want more than nothing, like 5s", a.timeout)
	}
	if a.space == "" {
		return cli.Usagef("--space is empty: want the name of a space, like uid or conv")
	}
	a.servers = nil
	for _, s := range strings.Split(a.server, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(s); err != nil || port == "" {
			return cli.Usagef("--server %q: want HOST:PORT[,HOST:PORT…]", s)
		}
		a.servers = append(a.servers, s)
	}
	if len(a.servers) == 0 {
		return cli.Usagef("--server is empty: want HOST:PORT[,HOST:PORT…]")
	}
	return nil
}

func (a *app) json() bool { return a.format == "json" }
