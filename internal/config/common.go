package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Log is what a server's own log is like.
type Log struct{ Level, Format string }

func (l *Log) declare(fs *pflag.FlagSet) {
	fs.StringVar(&l.Level, "log-level", "info", "least level that is logged: debug, info, warn, error")
	fs.StringVar(&l.Format, "log-format", "console", "console or json")
}

func (l *Log) check(k *Keys) (problems []error) {
	if _, err := zapcore.ParseLevel(l.Level); err != nil {
		problems = append(problems, k.Problem("log-level", "%q: want debug, info, warn or error", l.Level))
	}
	if l.Format != "console" && l.Format != "json" {
		problems = append(problems, k.Problem("log-format", "%q: want console or json", l.Format))
	}
	return problems
}

// Logger makes a checked configuration's logger; it writes to stderr.
func (l *Log) Logger() (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(l.Level)
	if err != nil {
		return nil, err
	}
	c := zap.NewProductionConfig()
	c.Level = zap.NewAtomicLevelAt(level)
	c.Sampling = nil
	c.DisableStacktrace = true
	c.DisableCaller = true
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	if l.Format == "console" {
		c.Encoding = "console"
		c.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
	}
	return c.Build()
}

// endpoint is an address to listen on and the one by which others reach it.
type endpoint struct {
	flag              string // "rpc": --rpc-listen, --rpc-advertise
	listen, advertise *string
	optional          bool // an empty listen address switches it off
	fixedPort         bool
}

func (e endpoint) declare(fs *pflag.FlagSet, listen, what string) {
	fs.StringVar(e.listen, e.flag+"-listen", listen, what)
	fs.StringVar(e.advertise, e.flag+"-advertise", "", fmt.Sprintf("HOST:PORT by which others reach it (default: %s_listen)", e.flag))
}

// check also fills the advertised address that was left open.
func (e endpoint) check(k *Keys) (problems []error) {
	flag := e.flag + "-listen"
	if *e.listen == "" {
		if !e.optional {
			return []error{k.Problem(flag, "must be given")}
		}
		*e.advertise = ""
		return nil
	}
	host, port, err := address(*e.listen)
	if err != nil {
		return []error{k.Problem(flag, "%v", err)}
	}
	if port == 0 && e.fixedPort {
		problems = append(problems, k.Problem(flag, "%q has no port: it must stay the same over restarts", *e.listen))
	}
	if *e.advertise == "" {
		if wildcard(host) {
			return append(problems, k.Problem(e.flag+"-advertise", "%s is %q, a wildcard: say by which host others reach this node", fileKey(flag), *e.listen))
		}
		*e.advertise = *e.listen
	} else if err := advertised(*e.advertise, true); err != nil {
		problems = append(problems, k.Problem(e.flag+"-advertise", "%v", err))
	}
	return problems
}

func atLeast(k *Keys, flag string, d, least time.Duration) []error {
	if d < least {
		return []error{k.Problem(flag, "%v is below the least of %v", d, least)}
	}
	return nil
}

func checkName(k *Keys, flag, s string) []error {
	if err := name(s); err != nil {
		return []error{k.Problem(flag, "%v", err)}
	}
	return nil
}

func joined(s []string) string { return strings.Join(s, ", ") }
