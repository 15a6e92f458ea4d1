package function

import (
	"bytes"
	"context"
	"log/slog"
	"strings"

	"github.com/fre-engine/fre/function/channel"
)

// eventKey is the context key of the *channel.Event.
type eventKey struct{}

// Logger returns the logger of ctx's event. Its lines are in the function's log with the event's
// id. slog's own functions with ctx (slog.InfoContext) log there too. Lines without an event go
// to stderr.
func Logger(ctx context.Context) *slog.Logger {
	e, _ := ctx.Value(eventKey{}).(*channel.Event)
	return slog.New(&logHandler{event: e})
}

// maxLine limits a log line, in bytes. Escaped, a line fits into a frame.
const maxLine = 32 << 10

// logHandler sends records to the engine: "message name=value …". It is immutable.
type logHandler struct {
	event *channel.Event                    // nil: the context's event
	with  []func(slog.Handler) slog.Handler // attributes and groups, outermost first
}

// Enabled returns true: the engine filters.
func (*logHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle sends r to the log of its event, or to stderr.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	e := h.event
	if e == nil {
		if e, _ = ctx.Value(eventKey{}).(*channel.Event); e == nil {
			complain("%s", line(h, r))
			return nil
		}
	}
	return e.Log(levelName(r.Level), line(h, r))
}

// WithAttrs records the attributes for Handle.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithAttrs(attrs) })
}

// WithGroup records the group for Handle.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return h.and(func(to slog.Handler) slog.Handler { return to.WithGroup(name) })
}

func (h *logHandler) and(f func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{h.event, append(h.with[:len(h.with):len(h.with)], f)}
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warning"
	}
	return "error"
}

// line formats a record without time and level, which the engine adds.
func line(h *logHandler, r slog.Record) string {
	var b bytes.Buffer
	message := r.Message
	if r.NumAttrs() > 0 || len(h.with) > 0 {
		var to slog.Handler = slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.Level(-1 << 20), ReplaceAttr: onlyAttrs})
		for _, f := range h.with {
			to = f(to)
		}
		attrs := slog.NewRecord(r.Time, r.Level, "", r.PC)
		r.Attrs(func(a slog.Attr) bool { attrs.AddAttrs(a); return true })
		if err := to.Handle(context.Background(), attrs); err != nil {
			b.WriteString(err.Error())
		}
		message = strings.TrimSpace(message + " " + strings.TrimSpace(b.String()))
	}
	return message[:min(len(message), maxLine)]
}

// onlyAttrs drops the record's own fields from a TextHandler's output.
func onlyAttrs(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	if _, level := a.Value.Any().(slog.Level); a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime ||
		a.Key == slog.LevelKey && level || a.Key == slog.MessageKey && a.Value.Kind() == slog.KindString && a.Value.String() == "" {
		return slog.Attr{}
	}
	return a
}
