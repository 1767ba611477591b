package sim

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logger writes a process's log into the ring, so that a dump tells what the
// processes thought between the messages.
func logger(r *ring, host string) *zap.Logger {
	return zap.New(&ringCore{ring: r, host: host, LevelEnabler: zapcore.InfoLevel})
}

type ringCore struct {
	zapcore.LevelEnabler
	ring   *ring
	host   string
	fields []zapcore.Field
}

func (c *ringCore) With(fields []zapcore.Field) zapcore.Core {
	d := *c
	d.fields = append(append([]zapcore.Field(nil), c.fields...), fields...)
	return &d
}

func (c *ringCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

func (c *ringCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.ring.count(e.Message)
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range c.fields {
		f.AddTo(enc)
	}
	for _, f := range fields {
		f.AddTo(enc)
	}
	c.ring.add("log %-4s    %s %s %v", c.host, e.Level, e.Message, enc.Fields)
	return nil
}

func (c *ringCore) Sync() error { return nil }
