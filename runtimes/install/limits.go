package install

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Limits of the unpacked size: of one package, and of all packages of a build. The largest known
// packages, PyTorch with its CUDA libraries, have 1 to 2 GiB each.
const (
	maxPackageBytes   = 4 << 30
	maxPackageEntries = 250_000
	maxBuildBytes     = 32 << 30
	maxBuildEntries   = 4_000_000
)

// ErrTooLarge: the unpacked packages exceed a limit. An archive of a few kilobytes may unpack to
// any size.
var ErrTooLarge = errors.New("unpacks to more than is allowed")

// Counter counts unpacked bytes and entries. It is safe for use by several goroutines.
type Counter struct {
	what                 string
	bytes, entries       atomic.Int64
	maxBytes, maxEntries int64
	all                  *Counter // counts the same entries
}

// NewCounter returns the counter of a build.
func NewCounter() *Counter {
	return &Counter{what: "all packages", maxBytes: maxBuildBytes, maxEntries: maxBuildEntries}
}

// Package returns the counter of one package, which counts for the build as well.
func (c *Counter) Package(name string) *Counter {
	return &Counter{what: name, maxBytes: maxPackageBytes, maxEntries: maxPackageEntries, all: c}
}

// Add counts an entry of size bytes. Errors: [ErrTooLarge].
func (c *Counter) Add(size int64) error {
	if n := c.bytes.Add(size); n > c.maxBytes || n < 0 {
		return fmt.Errorf("%s %w: %d GiB", c.what, ErrTooLarge, c.maxBytes>>30)
	}
	if c.entries.Add(1) > c.maxEntries {
		return fmt.Errorf("%s %w: %d files", c.what, ErrTooLarge, c.maxEntries)
	}
	if c.all != nil {
		return c.all.Add(size)
	}
	return nil
}
