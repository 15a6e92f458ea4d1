package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
)

// serverLog writes the server's log to the engine's log; notices become debug messages.
type serverLog struct {
	log    *slog.Logger
	broken *atomic.Bool
}

// critical is how the server's log reports that a stream has failed for good (stream.setWriteErr);
// nothing else reports the failure. TestDiskFull detects a changed text.
const critical = "critical write error"

func (l serverLog) at(level slog.Level, format string, v []any) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, "nats", "message", fmt.Sprintf(format, v...))
	}
}

// Noticef implements [natsserver.Logger].
func (l serverLog) Noticef(format string, v ...any) { l.at(slog.LevelDebug, format, v) }

// Warnf implements [natsserver.Logger].
func (l serverLog) Warnf(format string, v ...any) { l.at(slog.LevelWarn, format, v) }

// Fatalf implements [natsserver.Logger].
func (l serverLog) Fatalf(format string, v ...any) { l.at(slog.LevelError, format, v) }

// Errorf implements [natsserver.Logger].
func (l serverLog) Errorf(format string, v ...any) {
	if strings.Contains(strings.ToLower(format), critical) {
		l.broken.Store(true)
	}
	l.at(slog.LevelError, format, v)
}

// Debugf implements [natsserver.Logger].
func (l serverLog) Debugf(format string, v ...any) { l.at(slog.LevelDebug, format, v) }

// Tracef implements [natsserver.Logger].
func (l serverLog) Tracef(format string, v ...any) { l.at(slog.LevelDebug, format, v) }
