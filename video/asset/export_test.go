package asset

import "os"

// Lock returns the descriptor of the library's lock.
func (l *Library) Lock() int { return int(l.lock.Fd()) }

// HoldRemovals calls hold before the files of an asset are removed.
func (l *Library) HoldRemovals(hold func(dir string)) {
	l.remove = func(dir string) error {
		hold(dir)
		return os.RemoveAll(dir)
	}
}
