package server

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"sync"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/server/syscount"
)

// Duration of a profile: the default, and the maximum.
const (
	defaultProfile = 10 * time.Second
	maxProfile     = 5 * time.Minute
)

// debugRoutes are the routes that examine the engine's process.
type debugRoutes struct {
	engine    Engine
	log       *slog.Logger
	profiling sync.Mutex // held while a profile is taken
}

func (s *debugRoutes) routes() []route {
	return []route{
		{"GET", "/v1/debug/profiles/{kind}", s.profile},
		{"POST", "/v1/debug/syscalls", s.syscalls},
	}
}

// profile answers GET /v1/debug/profiles/{kind}?seconds=: a profile of the engine's process, for
// `go tool pprof` or, for kind trace, `go tool trace`. The server takes one profile at a time,
// because some kinds change settings of the whole process.
func (s *debugRoutes) profile(w http.ResponseWriter, r *http.Request) error {
	take := map[string]func(io.Writer, func()) error{
		"cpu": profileCPU, "trace": profileTrace, "mutex": profileMutex,
		"heap": profileHeap, "goroutine": profileGoroutines,
	}[r.PathValue("kind")]
	if take == nil {
		return &api.Error{
			Code: api.CodeNotFound, Message: fmt.Sprintf("no profile is called %q", r.PathValue("kind")),
			Next: "write cpu, heap, trace, goroutine or mutex",
		}
	}
	d := defaultProfile
	if v := r.URL.Query().Get("seconds"); v != "" {
		seconds, err := strconv.ParseFloat(v, 64)
		if err != nil || !(seconds > 0 && seconds <= maxProfile.Seconds()) {
			return badRequest("seconds: %q is not a number above 0 and up to %v", v, maxProfile.Seconds())
		}
		d = time.Duration(seconds * float64(time.Second))
	}
	if !s.profiling.TryLock() {
		return errProfiling
	}
	defer s.profiling.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	return take(w, func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
	})
}

var errProfiling = &api.Error{
	Code: api.CodeInUse, Message: "another profile is being taken",
	Next: "try again after the running profile",
}

func profileCPU(w io.Writer, wait func()) error {
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	wait()
	pprof.StopCPUProfile()
	return nil
}

func profileTrace(w io.Writer, wait func()) error {
	if err := trace.Start(w); err != nil {
		return err
	}
	wait()
	trace.Stop()
	return nil
}

// profileMutex profiles lock contention. The profile includes the results of earlier ones.
func profileMutex(w io.Writer, wait func()) error {
	before := runtime.SetMutexProfileFraction(1)
	defer runtime.SetMutexProfileFraction(before)
	wait()
	return pprof.Lookup("mutex").WriteTo(w, 0)
}

func profileHeap(w io.Writer, _ func()) error {
	runtime.GC() // the heap profile shows the state at the last collection
	return pprof.Lookup("heap").WriteTo(w, 0)
}

func profileGoroutines(w io.Writer, _ func()) error { return pprof.Lookup("goroutine").WriteTo(w, 0) }

// syscalls answers POST /v1/debug/syscalls. The server counts system calls from the first line
// of the answer, which is sent at once, to the end of the request's body:
//
//	client                                engine
//	POST, headers                      →
//	                                   ←  {"counting":true}
//	calls, on other connections        ⇄
//	end of body                        →
//	                                   ←  {"syscalls":[…]} or {"error":…}
func (s *debugRoutes) syscalls(w http.ResponseWriter, r *http.Request) error {
	c := http.NewResponseController(w)
	if err := c.EnableFullDuplex(); err != nil {
		return err
	}
	if !s.profiling.TryLock() {
		return errProfiling
	}
	defer s.profiling.Unlock()
	counter, err := syscount.Start()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	// Ignore write errors: the client may have disconnected.
	_ = lines.Encode(api.SyscallLine{Counting: true})
	_ = c.Flush()
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxJSONBytes))
	counts, err := counter.Stop()
	if err != nil {
		s.log.Error("count system calls", "error", err)
		_ = lines.Encode(api.SyscallLine{Error: errorOf(err)})
		return nil
	}
	_ = lines.Encode(api.SyscallLine{Syscalls: list(counts, func(n syscount.Count) api.Syscall {
		return api.Syscall{Name: n.Name, Calls: n.Calls}
	})})
	return nil
}
