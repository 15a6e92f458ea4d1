// Package engine here is a stand-in with the types of the agreed interface
// only: the merge deletes this file in favour of the real package.
package engine

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

type Function struct {
	Name                    string
	Image                   store.Digest
	ImageRef                string
	Config                  image.Config
	Deployed                time.Time
	Instances, Busy, Queued int
	Invocations, Failures   uint64
}

type DeployOptions struct{ Replace bool }

type Request struct {
	Method, Path, Query string
	Header              [][2]string
	Body                io.Reader
	Size                int64
}

type Response struct {
	ID       string
	Status   int
	Header   [][2]string
	Body     io.ReadCloser
	Size     int64
	Cold     bool
	Start    time.Duration
	Instance string
}

type State string

type Sandbox struct {
	ID, Function, Image, Tenant, Command string
	State                                State
	PID                                  int
	Created, Ended                       time.Time
	Exit                                 *sandbox.ExitStatus
}

type RunRequest struct {
	Image                 string
	Args, Env             []string
	Stdin, Stdout, Stderr *os.File
	Tenant                string
}

type LogLine struct {
	Time       time.Time `json:"time"`
	Function   string    `json:"function"`
	Sandbox    string    `json:"sandbox"`
	Invocation string    `json:"invocation,omitempty"`
	Stream     string    `json:"stream"`
	Level      string    `json:"level,omitempty"`
	Text       string    `json:"text"`
}

type LogOptions struct {
	Tail   int
	Since  time.Time
	Follow bool
}

var (
	ErrNameTaken  = errors.New("name already taken")
	ErrNotReady   = errors.New("image is not a function")
	ErrTimeout    = errors.New("time-out")
	ErrOverloaded = errors.New("overloaded")
	ErrClosed     = errors.New("engine is closed")
)

type FunctionError struct{ Type, Message, Stack string }

func (e *FunctionError) Error() string { return e.Type + ": " + e.Message }

type CrashError struct {
	Status sandbox.ExitStatus
	Reason string
}

func (e *CrashError) Error() string { return "the instance died: " + e.Reason }

type Check struct {
	Name                string
	OK                  bool
	Found, Effect, Next string
}
