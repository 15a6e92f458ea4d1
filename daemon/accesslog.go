package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/gateway"
)

// openAccessLog opens the file of --access-log.
func (d *Daemon) openAccessLog(context.Context) (err error) {
	file := os.Stdout
	switch path := d.cfg.AccessLog; path {
	case "":
		return nil
	case "-":
	default:
		// Append, for tools that rotate by copy and truncate.
		if file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return failure.Hint(fmt.Errorf("--access-log: %w", err), "give a file writable by root, or - for standard output")
		}
	}
	d.accessLog = gateway.NewAccessLog(file, d.log, d.metrics)
	d.undo.add(func() error {
		err := d.accessLog.Close()
		if file != os.Stdout {
			err = errors.Join(err, file.Close())
		}
		return err
	})
	return nil
}
