package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/sandbox/pool"
	"github.com/fre-engine/fre/store"
)

// interpreters keeps a pool of parked interpreters for each base environment that a deployed
// function can use.
type interpreters struct {
	host   *host
	cfg    InterpreterConfig
	parked atomic.Int64 // bytes of all parked interpreters
	died   atomic.Uint64
	full   sync.Once // warns once about cfg.MemoryBytes

	disk sync.Mutex // held while roots are made or removed; taken before mu

	mu    sync.Mutex
	pools map[string]*interpreterPool // by image.ParkedKey
}

// interpreterPool holds the parked interpreters of one root, arguments and environment.
type interpreterPool struct {
	all    *interpreters
	key    string
	image  *store.Image // of some function, with the parts for the root
	config image.Config
	users  int // deployed functions; guarded by all.mu

	// For a parked build tool; no function uses the pool (tools.go).
	tool    bool
	mounts  []sandbox.Mount
	limits  sandbox.Limits
	running atomic.Int64 // build steps under way that could use the tool

	pool    atomic.Pointer[pool.Pool[*interpreter]] // nil until the root is made
	bytes   atomic.Int64                            // memory of the last interpreter made
	charged atomic.Int64                            // memory of the last, as its cgroup counts it
}

// interpreter is a parked interpreter, used once.
type interpreter struct {
	id             string
	sb             *sandbox.Sandbox
	conn           *channel.Conn
	stdout, stderr *os.File // the engine's ends, unread
	bytes          int64
	taken          chan struct{}                  // closed when the interpreter is no longer parked
	config         atomic.Pointer[channel.Config] // the function's channel settings, set by become
}

func newInterpreters(h *host, cfg InterpreterConfig) *interpreters {
	return &interpreters{host: h, cfg: cfg, pools: map[string]*interpreterPool{}}
}

// use returns the pool for the instances of a function, or nil if its program cannot run in a parked
// interpreter. The function calls leave when it is retired.
func (s *interpreters) use(p *program) *interpreterPool {
	key := image.ParkedKey(p.image, &p.config)
	if s.cfg.Off || s.host.tenants.MapErr != nil || key == "" || p.config.Protocol != image.ProtocolChannel {
		return nil
	}
	// The engine enters the sandbox of a parked interpreter, so only the Builder's own files may
	// run in it.
	if p.image.Foreign {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting := s.pools[key]
	if waiting == nil {
		waiting = &interpreterPool{all: s, key: key, image: p.image, config: p.config}
		s.pools[key] = waiting
		s.host.life.Spawn(waiting.open)
	}
	waiting.users++
	return waiting
}

// open makes the root and starts to park interpreters.
func (p *interpreterPool) open() {
	s := p.all
	s.disk.Lock()
	defer s.disk.Unlock()
	root, err := s.host.cfg.Builder.ParkedRoot(s.host.life.Context(), p.image, &p.config)
	if err != nil {
		if s.host.life.Context().Err() == nil {
			s.host.log.Warn("no parked interpreters: functions start their own interpreter", "base", p.config.Base, "error", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users == 0 {
		return // the last function has left; prune follows
	}
	p.fill(s.host.cfg.Store.Rootfs(root.Digest), s.cfg.Ready, s.cfg.Max, 0, nil)
}

// fill starts to park interpreters in a root. [pool.Config] explains the other parameters.
func (p *interpreterPool) fill(rootfs string, ready, most int, idle time.Duration, busy func() bool) {
	s := p.all
	p.pool.Store(pool.New(pool.Config[*interpreter]{
		Name: "parked interpreters of " + p.config.Base, Ready: ready, Max: most, Idle: idle, Busy: busy, Log: s.host.log,
		Make: func() (*interpreter, error) { return p.park(rootfs) },
		Drop: func(pi *interpreter) error {
			if !pi.alive() {
				s.died.Add(1)
			}
			s.parked.Add(-pi.bytes)
			pi.drop()
			return nil
		},
		Alive: (*interpreter).alive,
	}))
}

// leave ends one use. The last leave drops the parked interpreters and removes the root.
func (p *interpreterPool) leave() {
	s := p.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	delete(s.pools, p.key)
	s.host.life.Spawn(func() {
		s.disk.Lock() // after open, if open is under way
		waiting := p.pool.Load()
		s.disk.Unlock()
		if waiting != nil {
			waiting.Close()
		}
		s.prune()
	})
}

// prune removes the roots that no pool uses. A stopping engine leaves the roots for the next
// engine.
func (s *interpreters) prune() {
	s.disk.Lock()
	defer s.disk.Unlock()
	for _, img := range s.host.cfg.Store.Images() {
		if !image.IsParkedRoot(img) || s.host.life.Stopping() || s.uses(img) {
			continue
		}
		if err := s.host.cfg.Store.RemoveImage(s.host.life.Context(), img.Digest); err != nil && s.host.life.Context().Err() == nil {
			s.host.log.Warn("root of parked interpreters not removed", "image", img.Digest, "error", err)
		}
	}
}

// uses reports whether img is the root of a pool.
func (s *interpreters) uses(img *store.Image) bool {
	config, err := image.ConfigOf(img)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pools[config.Labels[image.LabelSpec]] != nil
}

// parkWithin bounds an interpreter's start, which yields to all other work.
const parkWithin = time.Minute

// park starts an interpreter and waits until the interpreter parks.
func (p *interpreterPool) park(rootfs string) (pi *interpreter, err error) {
	s := p.all
	expected := p.bytes.Load()
	if s.parked.Add(expected) > s.cfg.MemoryBytes {
		s.parked.Add(-expected)
		s.full.Do(func() {
			s.host.log.Warn("fewer parked interpreters than demanded: the memory limit is reached",
				"bytes_each", expected, "bytes_allowed", s.cfg.MemoryBytes, "base", p.config.Base)
		})
		return nil, pool.ErrFull
	}
	ctx, cancel := context.WithTimeout(s.host.life.Context(), parkWithin)
	defer cancel()
	spec := sandbox.Spec{Rootfs: rootfs, Args: p.config.Parked.Args, Env: p.config.Parked.Env, Mounts: p.mounts, Limits: p.limits}
	if pi, err = s.host.startInterpreter(ctx, spec); err == nil {
		if err = pi.conn.Parked(ctx); err == nil {
			err = pi.measure(p)
		}
		if err != nil {
			err = fmt.Errorf("interpreter did not park: %w%s", err, pi.lastWords())
			pi.drop()
		}
	}
	if err != nil {
		s.parked.Add(-expected)
		return nil, err
	}
	s.parked.Add(pi.bytes - expected)
	s.host.life.Spawn(func() {
		select {
		case <-pi.sb.Done():
		case <-pi.conn.Done():
		case <-pi.taken:
			return
		}
		if waiting := p.pool.Load(); waiting != nil {
			waiting.Check() // makes a replacement
		}
	})
	return pi, nil
}

// startInterpreter starts an ordinary sandbox without a tenant, with the program and root of spec.
func (h *host) startInterpreter(ctx context.Context, spec sandbox.Spec) (*interpreter, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	pi := &interpreter{id: live.NewID(), taken: make(chan struct{})}
	pi.conn = channel.NewConn(ours, channel.Config{
		Parked: true,
		Log: func(invocation, level, message string) {
			if cfg := pi.config.Load(); cfg != nil {
				cfg.Log(invocation, level, message)
			}
		},
		LogPace: func(bytes int) (drop bool, wait time.Duration) {
			if cfg := pi.config.Load(); cfg != nil {
				return cfg.LogPace(bytes)
			}
			return true, 0 // no function yet: drop
		},
		Files: openTmp(func() *sandbox.Sandbox { return pi.sb }),
		// Called only for events: config is set.
		Memory: func(size int) (channel.Buffer, error) { return pi.config.Load().Memory(size) },
		Hold:   func(h channel.Held) (func(), bool, error) { return pi.config.Load().Hold(h) },
	})
	var outW, errW *os.File
	if pi.stdout, outW, err = live.OutputPipe(); err == nil {
		defer outW.Close()
		if pi.stderr, errW, err = live.OutputPipe(); err == nil {
			defer errW.Close()
			spec.ID, spec.User, spec.Background = pi.id, sandbox.User{Own: true, UID: live.FunctionUID, GID: live.FunctionUID}, true
			spec.Stdout, spec.Stderr, spec.Channel = outW, errW, theirs
			pi.sb, err = h.cfg.Sandboxes.Start(ctx, spec)
		}
	}
	if err != nil {
		pi.drop()
		return nil, err
	}
	return pi, nil
}

// measure records the memory of a parked interpreter.
func (pi *interpreter) measure(p *interpreterPool) error {
	stats, err := pi.sb.Stats()
	if err != nil {
		return err
	}
	pi.bytes = stats.MemoryBytes
	if pss := readPSS(pi.sb.PID()); pss > 0 {
		pi.bytes = pss
	}
	p.bytes.Store(pi.bytes)
	p.charged.Store(stats.MemoryBytes)
	return nil
}

// readPSS returns the proportional set size of a process in bytes, or 0 if it cannot be read
// (proc_pid_smaps(5)).
func readPSS(pid int) int64 {
	rollup, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(rollup) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			if fields := bytes.Fields(rest); len(fields) > 0 {
				kb, err := strconv.ParseInt(string(fields[0]), 10, 64)
				if err != nil {
					return 0
				}
				return kb << 10
			}
		}
	}
	return 0
}

// alive reports whether the interpreter is still parked.
func (pi *interpreter) alive() bool {
	select {
	case <-pi.sb.Done():
		return false
	case <-pi.conn.Done():
		return false
	default:
		return true
	}
}

// drop kills the sandbox and frees all its resources, also after a failed start.
func (pi *interpreter) drop() {
	if pi.sb != nil {
		pi.sb.Kill()
		<-pi.sb.Done()
	}
	_ = pi.conn.Close()
	for _, f := range []*os.File{pi.stdout, pi.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// lastWords kills an interpreter that did not park and returns its standard error as ": TEXT".
func (pi *interpreter) lastWords() string {
	pi.sb.Kill()
	<-pi.sb.Done()
	words, _ := io.ReadAll(io.LimitReader(pi.stderr, 4<<10))
	if words = bytes.TrimSpace(words); len(words) == 0 {
		return ""
	}
	return ": " + string(words)
}

// take returns a parked interpreter for a sandbox with this memory limit in bytes, or nil.
func (p *interpreterPool) take(memoryBytes int64) *interpreter {
	// The interpreter's memory must leave a fifth of the function's limit free: else the kernel
	// would reclaim pages while the event waits.
	if memoryBytes < p.charged.Load()/4*5 {
		return nil
	}
	return p.takeReady()
}

// takeReady returns a parked interpreter, or nil if none is ready.
func (p *interpreterPool) takeReady() *interpreter {
	waiting := p.pool.Load()
	if waiting == nil {
		return nil
	}
	pi, ok := waiting.TryTake()
	if !ok {
		return nil
	}
	p.all.parked.Add(-pi.bytes)
	close(pi.taken)
	return pi
}

func (p *interpreterPool) stats() *InterpreterStats {
	out := &InterpreterStats{Bytes: p.bytes.Load()}
	if waiting := p.pool.Load(); waiting != nil {
		out.Ready, out.Want = waiting.Len()
	}
	return out
}

// furniture turns a parked interpreter into an instance of one function.
type furniture struct {
	load  channel.Load
	mount []sandbox.Mount
}

// newFurniture returns nil if the function's environment is too long for LOAD.
func (p *program) newFurniture() *furniture {
	out := &furniture{load: channel.Load{Handler: p.config.Handler, Dir: "/function", Env: map[string]string{}}}
	for _, v := range p.environment() { // the last of equal names counts, as in Python and Node
		name, value, _ := strings.Cut(v, "=")
		out.load.Env[name] = value
	}
	if text, err := json.Marshal(out.load); err != nil || len(text) > channel.MaxMeta {
		return nil
	}
	rootfs := p.host.cfg.Store.Rootfs(p.image.Digest)
	for _, target := range p.config.Parked.Mounts {
		source := filepath.Join(rootfs, target)
		if _, err := os.Lstat(source); err == nil { // a function without packages may lack the directory
			out.mount = append(out.mount, sandbox.Mount{Source: source, Target: target})
		}
	}
	return out
}

var (
	interpretersDesc     = prometheus.NewDesc("fre_parked_interpreters", "Parked interpreters.", []string{"base"}, nil)
	interpreterBytesDesc = prometheus.NewDesc("fre_parked_interpreter_bytes", "Memory of a parked interpreter.", []string{"base"}, nil)
	interpretersDiedDesc = prometheus.NewDesc("fre_parked_interpreters_died_total", "Parked interpreters that ended before use.", nil, nil)
)

// Describe is part of prometheus.Collector.
func (s *interpreters) Describe(out chan<- *prometheus.Desc) {
	out <- interpretersDesc
	out <- interpreterBytesDesc
	out <- interpretersDiedDesc
}

// Collect is part of prometheus.Collector. Pools of one base are added up: of several versions,
// usually all but the newest are about to go.
func (s *interpreters) Collect(out chan<- prometheus.Metric) {
	total := map[string]*InterpreterStats{}
	s.mu.Lock()
	for _, p := range s.pools {
		one := p.stats()
		sum := total[p.config.Base]
		if sum == nil {
			sum = &InterpreterStats{}
			total[p.config.Base] = sum
		}
		sum.Ready += one.Ready
		sum.Bytes = max(sum.Bytes, one.Bytes)
	}
	s.mu.Unlock()
	for base, sum := range total {
		out <- prometheus.MustNewConstMetric(interpretersDesc, prometheus.GaugeValue, float64(sum.Ready), base)
		out <- prometheus.MustNewConstMetric(interpreterBytesDesc, prometheus.GaugeValue, float64(sum.Bytes), base)
	}
	out <- prometheus.MustNewConstMetric(interpretersDiedDesc, prometheus.CounterValue, float64(s.died.Load()))
}
