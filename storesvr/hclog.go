package storesvr

import (
	"fmt"
	"io"
	"log"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// connectionEnded is what Raft's transport says, as an error, of every connection that ends.
const connectionEnded = "failed to decode incoming command"

// hclogger lets Raft log to zap.
type hclogger struct {
	z       *zap.Logger
	name    string
	implied []any
}

func newHclog(z *zap.Logger) hclog.Logger {
	return &hclogger{z: z.WithOptions(zap.AddCallerSkip(2))}
}

func zapLevel(l hclog.Level) zapcore.Level {
	switch l {
	case hclog.NoLevel, hclog.Trace, hclog.Debug:
		return zapcore.DebugLevel
	case hclog.Info:
		return zapcore.InfoLevel
	case hclog.Warn:
		return zapcore.WarnLevel
	}
	return zapcore.ErrorLevel
}

func fields(args []any) []zap.Field {
	out := make([]zap.Field, 0, len(args)/2+1)
	for i := 0; i+1 < len(args); i += 2 {
		key, ok := args[i].(string)
		if !ok {
			key = fmt.Sprint(args[i])
		}
		switch v := args[i+1].(type) {
		case hclog.Format: // a format and its arguments
			if f, ok := v[0].(string); ok {
				out = append(out, zap.String(key, fmt.Sprintf(f, v[1:]...)))
			}
		case error:
			out = append(out, zap.NamedError(key, v))
		default:
			out = append(out, zap.Any(key, v))
		}
	}
	if len(args)%2 == 1 {
		out = append(out, zap.Any("extra", args[len(args)-1]))
	}
	return out
}

func (l *hclogger) Log(level hclog.Level, msg string, args ...any) {
	if ce := l.z.Check(zapLevel(level), msg); ce != nil {
		ce.Write(fields(args)...)
	}
}

func (l *hclogger) Trace(string, ...any)          {}
func (l *hclogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *hclogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *hclogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *hclogger) Error(msg string, args ...any) {
	if msg == connectionEnded {
		// A peer went, or this node did; who the peer is was checked before.
		l.Log(hclog.Debug, msg, args...)
		return
	}
	l.Log(hclog.Error, msg, args...)
}

func (l *hclogger) IsTrace() bool { return false }
func (l *hclogger) IsDebug() bool { return l.z.Core().Enabled(zapcore.DebugLevel) }
func (l *hclogger) IsInfo() bool  { return l.z.Core().Enabled(zapcore.InfoLevel) }
func (l *hclogger) IsWarn() bool  { return l.z.Core().Enabled(zapcore.WarnLevel) }
func (l *hclogger) IsError() bool { return l.z.Core().Enabled(zapcore.ErrorLevel) }

func (l *hclogger) ImpliedArgs() []any { return l.implied }
func (l *hclogger) With(args ...any) hclog.Logger {
	return &hclogger{z: l.z.With(fields(args)...), name: l.name, implied: append(l.implied[:len(l.implied):len(l.implied)], args...)}
}
func (l *hclogger) Name() string                   { return l.name }
func (l *hclogger) Named(name string) hclog.Logger { return l.ResetNamed(name) }
func (l *hclogger) ResetNamed(name string) hclog.Logger {
	return &hclogger{z: l.z.Named(name), name: name, implied: l.implied}
}
func (l *hclogger) SetLevel(hclog.Level) {}
func (l *hclogger) GetLevel() hclog.Level {
	if l.IsDebug() {
		return hclog.Debug
	}
	return hclog.Info
}

func (l *hclogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return zap.NewStdLog(l.z)
}
func (l *hclogger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
