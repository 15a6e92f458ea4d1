package engine

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/fre-engine/fre/engine/live"
)

// Logs emits the log lines of a function, of one revision (NAME@REVISION) or of a container,
// oldest first, from one goroutine. Logs returns nil after the last line. With Follow, Logs
// returns nil when ctx ends, the container ends, the function is removed or the engine stops.
// Errors: *UnknownError, errors of emit, ctx.Err() if ctx ends while stored lines are read.
func (e *Engine) Logs(ctx context.Context, name string, o live.LogOptions, emit func(live.LogLine) error) error {
	qualified, revision, asked := strings.Cut(name, "@")
	d, err := e.find(qualified)
	if err == nil && asked {
		o.Revision, err = d.spec.resolve(d.name, revision)
	}
	if err != nil {
		if _, other := e.Container(name); other == nil {
			return e.ContainerLogs(ctx, name, o, emit)
		}
		return err
	}
	return d.logs.Read(ctx, e.life.Closed(), o, emit)
}

func (h *host) logDir(function string) string {
	return filepath.Join(h.cfg.StateDir, "logs", function)
}

func (h *host) openLog(function string) (*live.Log, error) {
	return live.OpenLog(h.logDir(function), function, h.cfg.LogBytes, h.cfg.LogFiles)
}
