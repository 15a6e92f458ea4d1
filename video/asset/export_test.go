package asset

import "os"

// HoldRemovals calls hold before the files of an asset are removed.
func (l *Library) HoldRemovals(hold func(dir string)) {
	l.remove = func(dir string) error {
		hold(dir)
		return os.RemoveAll(dir)
	}
}
