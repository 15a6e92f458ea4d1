package template

import (
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// Patterns of api/template.schema.json; a test compares them.
var (
	namePattern    = lazyregexp.New(`^[a-z0-9][a-z0-9-]{0,62}$`)
	versionPattern = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$`)
	pathPattern    = lazyregexp.New(`^[^/\x00-\x1f][^\x00-\x1f]*$`)
	handlerPattern = lazyregexp.New(`^[^\x00-\x1f]{1,255}$`)
	readyPattern   = lazyregexp.New(`^/[!-~]{0,254}$`)
	envPattern     = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	runPattern     = lazyregexp.New(`^[^\x00]{1,1000}$`)
	namePackage    = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{1,127}$`)           // of Debian
	refPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}$`) // as in git-check-ref-format(1), without unused characters
	urlPattern     = lazyregexp.New("^((https?|ssh)://([A-Za-z0-9_.~-]+@)?[A-Za-z0-9_.~:\\[\\]-]+/|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:)[^\\x00-\\x20\"'\\\\`$]{1,1000}$")
	debPattern     = lazyregexp.New(`^[a-z0-9][a-z0-9.+-]{1,254}(=[A-Za-z0-9*?\[][A-Za-z0-9.+:~*?\[\]-]{0,254})?$`)
	libPattern     = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(\.[A-Za-z0-9_.+-]+)?$`)
)

// Ranges of numbers, in the units of [Resources].
const (
	minMemory, maxMemory   = int64(4 << 20), int64(1 << 42)
	minTmp, maxTmp         = int64(64 << 10), int64(1 << 42)
	minCPU, maxCPU         = int64(10), int64(1024_000)
	minTimeout, maxTimeout = time.Millisecond, 24 * time.Hour
	maxIdle                = 24 * time.Hour
	minFiles, maxFiles     = int64(16), int64(1 << 20)
	maxPids                = int64(1 << 20)
	runtimeThreads         = 8 // threads that a runtime needs beside the threads that handle events
	maxConcurrency         = 1024
	maxInstances           = 1 << 16
	MaxEnvBytes            = 128 << 10 // of all names and values; the kernel allows MAX_ARG_STRLEN for one
)
