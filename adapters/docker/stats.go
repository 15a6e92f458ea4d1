package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/container"

	"github.com/fre-engine/fre/engine/live"
)

type cpuStats struct {
	CPUUsage struct {
		Total  int64 `json:"total_usage"`
		Kernel int64 `json:"usage_in_kernelmode"`
		User   int64 `json:"usage_in_usermode"`
	} `json:"cpu_usage"`
	System     int64    `json:"system_cpu_usage,omitempty"` // nanoseconds of all CPUs since boot
	Online     int      `json:"online_cpus,omitempty"`
	Throttling struct{} `json:"throttling_data"`
}

// containerStats is one answer of the stats route. memory_stats.stats is empty, so clients use
// usage unchanged.
type containerStats struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Read    time.Time `json:"read"`
	PreRead time.Time `json:"preread"`
	Pids    struct {
		Current int   `json:"current"`
		Limit   int64 `json:"limit"`
	} `json:"pids_stats"`
	Blkio  struct{} `json:"blkio_stats"`
	CPU    cpuStats `json:"cpu_stats"`
	PreCPU cpuStats `json:"precpu_stats"`
	Memory struct {
		Usage    int64            `json:"usage"`
		MaxUsage int64            `json:"max_usage,omitempty"`
		Stats    map[string]int64 `json:"stats"`
		Limit    int64            `json:"limit"`
	} `json:"memory_stats"`
	Networks map[string]any `json:"networks,omitempty"`
}

// containerStats answers GET /containers/ID/stats?stream=&one-shot=. The answer is one record
// per second; without stream, one record over one second; with one-shot, one record at once.
func (s *server) containerStats(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	stream := r.URL.Query().Get("stream") == "" || boolOf(r, "stream")
	oneShot := boolOf(r, "one-shot")
	if stream && oneShot {
		return badRequest("cannot have stream=true and one-shot=true")
	}
	last := containerStats{}
	if err := s.measure(c, &last); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	encoder := json.NewEncoder(w)
	flush := http.NewResponseController(w)
	if oneShot || !c.running() && !stream {
		_ = encoder.Encode(last) // the client may have disconnected
		return nil
	}
	send := func(record containerStats) (more bool) {
		return encoder.Encode(record) == nil && flush.Flush() == nil && stream
	}
	// A stream begins with a record at once, because clients print nothing before.
	if !stream || send(last) {
		s.measureEach(r.Context(), c.ID, last, send)
	}
	return nil
}

// measureEach sends a record each second, until send returns false, the container is removed, or
// ctx or the engine ends.
func (s *server) measureEach(ctx context.Context, id string, last containerStats, send func(containerStats) (more bool)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for more := true; more; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-s.engine.Closed():
			return
		}
		next, err := s.measureAgain(id, last)
		if err != nil {
			return
		}
		more, last = send(next), next
	}
}

// measureAgain returns the record after last. The container may have stopped or restarted.
func (s *server) measureAgain(id string, last containerStats) (containerStats, error) {
	next := containerStats{PreRead: last.Read, PreCPU: last.CPU}
	c, err := s.container(id)
	if err != nil {
		return next, err
	}
	err = s.measure(c, &next)
	return next, err
}

// measure fills in the container's current usage, or nothing if the container has ended.
func (s *server) measure(c shownContainer, into *containerStats) error {
	into.ID, into.Name = c.ID, "/"+c.name
	into.Memory.Stats = map[string]int64{}
	if !c.running() {
		return nil
	}
	into.Read = time.Now().UTC()
	usage, err := s.engine.Stats(c.ID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone) {
		return nil // ended meanwhile
	}
	if err != nil {
		return err
	}
	into.Memory.Usage, into.Memory.MaxUsage = usage.MemoryBytes, usage.MaxMemory
	into.Memory.Limit = s.host.memory
	into.Pids.Current = usage.Processes
	limits := c.Limits
	if c.record != nil {
		limits = c.record.Config.Limits
	}
	if limits.MemoryBytes > 0 {
		into.Memory.Limit, into.Pids.Limit = limits.MemoryBytes, limits.Pids
	}
	into.CPU.CPUUsage.Total = int64(usage.CPU)
	into.CPU.Online = runtime.NumCPU()
	into.CPU.System, err = systemCPU()
	return err
}

// systemCPU returns the time of all CPUs, idle time included, in nanoseconds: the first line of
// /proc/stat, in hundredths of a second (proc_stat(5)).
func systemCPU() (int64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var sum int64
	for i, field := range strings.Fields(line) {
		if i == 0 || i > 8 { // "cpu", and guest times, which other fields include
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum * int64(time.Second/100), nil
}

// containerTop answers GET /containers/ID/top?ps_args= with the columns of ps -ef. Other ps_args
// are refused, because the engine never runs the host's ps.
func (s *server) containerTop(w http.ResponseWriter, r *http.Request) error {
	c, err := s.live(r.PathValue("id"))
	if err != nil {
		return err
	}
	if args := r.URL.Query().Get("ps_args"); args != "" && args != "-ef" {
		return leftOut("ps "+args+" for docker top", "docker top shows the columns of ps -ef: leave the options out")
	}
	processes, err := s.engine.Processes(c.ID)
	if err != nil {
		return err
	}
	rows := [][]string{}
	for _, p := range processes {
		rows = append(rows, topRow(p))
	}
	return reply(w, http.StatusOK, types.TopResponse{Titles: []string{"UID", "PID", "PPID", "C", "STIME", "TTY", "TIME", "CMD"}, Processes: rows})
}

func topRow(p live.Process) []string {
	took := int(p.CPU.Seconds())
	share := 0
	if age := time.Since(p.Started); age > 0 {
		share = int(100 * p.CPU / age)
	}
	clock := strconv.Itoa(took/3600) + ":" + time.Unix(int64(took%3600), 0).UTC().Format("04:05")
	if took < 36000 {
		clock = "0" + clock
	}
	return []string{strconv.Itoa(p.UID), strconv.Itoa(p.PID), strconv.Itoa(p.Parent), strconv.Itoa(share), p.Started.Local().Format("15:04"), "?", clock, p.Command}
}
