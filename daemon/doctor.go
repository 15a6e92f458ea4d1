package daemon

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/server"
)

// Doctor checks the host when no engine answers, with measured costs if costs is set. state is the
// state directory of a future engine; until it exists, its nearest existing parent is checked.
func Doctor(state string, costs bool) ([]api.Check, error) {
	for {
		_, err := os.Stat(state)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		state = filepath.Dir(state)
	}
	checks := engine.Checks(state)
	var err error
	if costs {
		err = engine.Measure(checks, state)
	}
	return server.Checks(checks), err
}
