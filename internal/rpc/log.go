package rpc

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/cloudwego/kitex/pkg/klog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// kitexLog holds where Kitex's own log goes. Kitex has one logger a process and
// sets it without a lock, so it is set once, at init, to one that can be pointed elsewhere.
var kitexLog atomic.Pointer[zap.Logger]

func init() { klog.SetLogger(logAdapter{}) }

// SetLogger directs what Kitex itself has to say at warn and above to l; until then it is dropped.
func SetLogger(l *zap.Logger) {
	kitexLog.Store(l.WithOptions(zap.AddStacktrace(zapcore.FatalLevel)).Named("kitex"))
}

// everyday has what Kitex logs as an error or a warning though it only says
// that a peer went away, or repeats an error that the caller gets anyhow.
var everyday = []string{
	"KITEX: processing gRPC request error",
	"KITEX: processing request error",
	"KITEX: grpc client loopyWriter.run returning",
	"KITEX: New grpc client connection failed",
	"KITEX: write error reply failed",
	"transport: http2Server.HandleStreams",
	"transport: http2Client.reader",
	"transport: http2Client.handleRSTStream",
	"KITEX: to_service=",
	"KITEX: received error and exit",
	"KITEX: OnActive error",
}

func logAt(level zapcore.Level, format string, v []any) {
	l := kitexLog.Load()
	if l == nil {
		return
	}
	text := fmt.Sprint(v...)
	if format != "" {
		text = fmt.Sprintf(format, v...)
	}
	for _, prefix := range everyday {
		if strings.HasPrefix(text, prefix) && !strings.Contains(text, "panic") {
			level = zapcore.DebugLevel
			break
		}
	}
	if ce := l.Check(level, text); ce != nil {
		ce.Write()
	}
}

// logAdapter is a klog.FullLogger. Below warn it drops: Kitex has a lot to say.
// Its Fatal does not end the process: that is main's decision.
type logAdapter struct{}

func (logAdapter) Trace(...any)  {}
func (logAdapter) Debug(...any)  {}
func (logAdapter) Info(...any)   {}
func (logAdapter) Notice(...any) {}
func (logAdapter) Warn(v ...any) { logAt(zapcore.WarnLevel, "", v) }
func (logAdapter) Error(v ...any) {
	logAt(zapcore.ErrorLevel, "", v)
}
func (logAdapter) Fatal(v ...any) { logAt(zapcore.ErrorLevel, "", v) }

func (logAdapter) Tracef(string, ...any)          {}
func (logAdapter) Debugf(string, ...any)          {}
func (logAdapter) Infof(string, ...any)           {}
func (logAdapter) Noticef(string, ...any)         {}
func (logAdapter) Warnf(format string, v ...any)  { logAt(zapcore.WarnLevel, format, v) }
func (logAdapter) Errorf(format string, v ...any) { logAt(zapcore.ErrorLevel, format, v) }
func (logAdapter) Fatalf(format string, v ...any) { logAt(zapcore.ErrorLevel, format, v) }

func (logAdapter) CtxTracef(context.Context, string, ...any)  {}
func (logAdapter) CtxDebugf(context.Context, string, ...any)  {}
func (logAdapter) CtxInfof(context.Context, string, ...any)   {}
func (logAdapter) CtxNoticef(context.Context, string, ...any) {}
func (logAdapter) CtxWarnf(_ context.Context, format string, v ...any) {
	logAt(zapcore.WarnLevel, format, v)
}
func (logAdapter) CtxErrorf(_ context.Context, format string, v ...any) {
	logAt(zapcore.ErrorLevel, format, v)
}
func (logAdapter) CtxFatalf(_ context.Context, format string, v ...any) {
	logAt(zapcore.ErrorLevel, format, v)
}

func (logAdapter) SetLevel(klog.Level) {}
func (logAdapter) SetOutput(io.Writer) {}
