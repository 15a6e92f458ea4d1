package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// ShellConfig bounds the parked interpreters: each is started in a sandbox of its own before its
// function is known.
type ShellConfig struct {
	Off         bool
	Ready       int   // parked for each base environment in use, without demand; default 2
	Max         int   // parked for each base environment after great demand; default 8
	MemoryBytes int64 // of all parked interpreters; default a tenth of the host's memory
}

func (c *ShellConfig) setDefaults(memory int64) {
	if c.Ready == 0 {
		c.Ready = 2
	}
	if c.Max == 0 {
		c.Max = max(8, c.Ready)
	}
	c.Ready = min(c.Ready, c.Max)
	if c.MemoryBytes == 0 {
		c.MemoryBytes = memory / 10
	}
}

// ShellStats counts the parked interpreters for a function's instances.
type ShellStats struct {
	Ready int   // parked now
	Want  int   // the target by recent demand
	Bytes int64 // of one, with a share of shared pages (PSS); 0 before the first
}

// shells keeps a pool of parked interpreters for each base environment that a deployed function
// can use.
type shells struct {
	e      *Engine
	cfg    ShellConfig
	parked atomic.Int64 // bytes of all parked interpreters
	died   atomic.Uint64
	full   sync.Once // warns once about cfg.MemoryBytes

	disk sync.Mutex // held while roots are made or removed; taken before mu

	mu    sync.Mutex
	pools map[string]*shellPool // by image.ShellKey
}

// shellPool holds the parked interpreters of one root, arguments and environment.
type shellPool struct {
	all    *shells
	key    string
	image  *store.Image // of some function, with the parts for the root
	config image.Config
	users  int // deployed functions; guarded by all.mu

	// For a parked build tool; no function uses the pool (tools.go).
	tool    bool
	mounts  []sandbox.Mount
	limits  sandbox.Limits
	running atomic.Int64 // build steps under way that could use the tool

	pool    atomic.Pointer[pool.Pool[*shell]] // nil until the root is made
	bytes   atomic.Int64                      // memory of the last interpreter made
	charged atomic.Int64                      // memory of the last, as its cgroup counts it
}

// shell is a parked interpreter, used once.
type shell struct {
	id             string
	sb             *sandbox.Sandbox
	conn           *channel.Conn
	stdout, stderr *os.File // the engine's ends, unread
	bytes          int64
	taken          chan struct{}                  // closed when the interpreter is no longer parked
	config         atomic.Pointer[channel.Config] // the function's channel settings, set by become
}

func newShells(e *Engine, cfg ShellConfig) *shells {
	return &shells{e: e, cfg: cfg, pools: map[string]*shellPool{}}
}

// use returns the pool for a function's instances, or nil if the function cannot use parked
// interpreters. The function calls leave when it is retired.
func (s *shells) use(f *function) *shellPool {
	key := image.ShellKey(f.image, &f.config)
	if s.cfg.Off || s.e.mapErr != nil || key == "" || f.config.Protocol != image.ProtocolChannel {
		return nil
	}
	// The engine enters the sandbox of a parked interpreter, so only the Builder's own files may
	// run in it.
	if f.image.Foreign {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pools[key]
	if p == nil {
		p = &shellPool{all: s, key: key, image: f.image, config: f.config}
		s.pools[key] = p
		s.e.life.Spawn(p.open)
	}
	p.users++
	return p
}

// open makes the root and starts to park interpreters.
func (p *shellPool) open() {
	s := p.all
	s.disk.Lock()
	defer s.disk.Unlock()
	root, err := s.e.cfg.Builder.ShellRoot(s.e.life.Context(), p.image, &p.config)
	if err != nil {
		if s.e.life.Context().Err() == nil {
			s.e.log.Warn("no parked interpreters: functions start their own interpreter", "base", p.config.Base, "error", err)
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users == 0 {
		return // the last function has left; prune follows
	}
	p.fill(s.e.cfg.Store.Rootfs(root.Digest), s.cfg.Ready, s.cfg.Max, 0, nil)
}

// fill starts to park interpreters in a root. [pool.Config] explains the other parameters.
func (p *shellPool) fill(rootfs string, ready, most int, idle time.Duration, busy func() bool) {
	s := p.all
	p.pool.Store(pool.New(pool.Config[*shell]{
		Name: "parked interpreters of " + p.config.Base, Ready: ready, Max: most, Idle: idle, Busy: busy, Log: s.e.log,
		Make: func() (*shell, error) { return p.park(rootfs) },
		Drop: func(sh *shell) error {
			if !sh.alive() {
				s.died.Add(1)
			}
			s.parked.Add(-sh.bytes)
			sh.drop()
			return nil
		},
		Alive: (*shell).alive,
	}))
}

// leave ends one use. The last leave drops the parked interpreters and removes the root.
func (p *shellPool) leave() {
	s := p.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	delete(s.pools, p.key)
	s.e.life.Spawn(func() {
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
func (s *shells) prune() {
	s.disk.Lock()
	defer s.disk.Unlock()
	for _, img := range s.e.cfg.Store.Images() {
		if !image.IsShellRoot(img) || s.e.Stopping() || s.uses(img) {
			continue
		}
		if err := s.e.cfg.Store.RemoveImage(s.e.life.Context(), img.Digest); err != nil && s.e.life.Context().Err() == nil {
			s.e.log.Warn("root of parked interpreters not removed", "image", img.Digest, "error", err)
		}
	}
}

// uses reports whether img is the root of a pool.
func (s *shells) uses(img *store.Image) bool {
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
func (p *shellPool) park(rootfs string) (sh *shell, err error) {
	s := p.all
	expected := p.bytes.Load()
	if s.parked.Add(expected) > s.cfg.MemoryBytes {
		s.parked.Add(-expected)
		s.full.Do(func() {
			s.e.log.Warn("fewer parked interpreters than demanded: the memory limit is reached",
				"bytes_each", expected, "bytes_allowed", s.cfg.MemoryBytes, "base", p.config.Base)
		})
		return nil, pool.ErrFull
	}
	ctx, cancel := context.WithTimeout(s.e.life.Context(), parkWithin)
	defer cancel()
	spec := sandbox.Spec{Rootfs: rootfs, Args: p.config.Shell.Args, Env: p.config.Shell.Env, Mounts: p.mounts, Limits: p.limits}
	if sh, err = s.e.startShell(ctx, spec); err == nil {
		if err = sh.conn.Parked(ctx); err == nil {
			err = sh.measure(p)
		}
		if err != nil {
			err = fmt.Errorf("interpreter did not park: %w%s", err, sh.lastWords())
			sh.drop()
		}
	}
	if err != nil {
		s.parked.Add(-expected)
		return nil, err
	}
	s.parked.Add(sh.bytes - expected)
	s.e.life.Spawn(func() {
		select {
		case <-sh.sb.Done():
		case <-sh.conn.Done():
		case <-sh.taken:
			return
		}
		if waiting := p.pool.Load(); waiting != nil {
			waiting.Check() // makes a replacement
		}
	})
	return sh, nil
}

// startShell starts an ordinary sandbox without a tenant, with the program and root of spec.
func (e *Engine) startShell(ctx context.Context, spec sandbox.Spec) (*shell, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	sh := &shell{id: live.NewID(), taken: make(chan struct{})}
	sh.conn = channel.NewConn(ours, channel.Config{
		Parked: true,
		Log: func(invocation, level, message string) {
			if cfg := sh.config.Load(); cfg != nil {
				cfg.Log(invocation, level, message)
			}
		},
		LogPace: func(bytes int) (drop bool, wait time.Duration) {
			if cfg := sh.config.Load(); cfg != nil {
				return cfg.LogPace(bytes)
			}
			return true, 0 // no function yet: drop
		},
		Files: openTmp(func() *sandbox.Sandbox { return sh.sb }),
		// Called only for events: config is set.
		Memory: func(size int) (channel.Buffer, error) { return sh.config.Load().Memory(size) },
		Hold:   func(h channel.Held) (func(), bool, error) { return sh.config.Load().Hold(h) },
	})
	var outW, errW *os.File
	if sh.stdout, outW, err = live.OutputPipe(); err == nil {
		defer outW.Close()
		if sh.stderr, errW, err = live.OutputPipe(); err == nil {
			defer errW.Close()
			spec.ID, spec.User, spec.Background = sh.id, sandbox.User{Own: true, UID: functionUID, GID: functionUID}, true
			spec.Stdout, spec.Stderr, spec.Channel = outW, errW, theirs
			sh.sb, err = e.cfg.Sandboxes.Start(ctx, spec)
		}
	}
	if err != nil {
		sh.drop()
		return nil, err
	}
	return sh, nil
}

// measure records the memory of a parked interpreter.
func (sh *shell) measure(p *shellPool) error {
	stats, err := sh.sb.Stats()
	if err != nil {
		return err
	}
	sh.bytes = stats.MemoryBytes
	if pss := readPSS(sh.sb.PID()); pss > 0 {
		sh.bytes = pss
	}
	p.bytes.Store(sh.bytes)
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
func (sh *shell) alive() bool {
	select {
	case <-sh.sb.Done():
		return false
	case <-sh.conn.Done():
		return false
	default:
		return true
	}
}

// drop kills the sandbox and frees all its resources, also after a failed start.
func (sh *shell) drop() {
	if sh.sb != nil {
		sh.sb.Kill()
		<-sh.sb.Done()
	}
	_ = sh.conn.Close()
	for _, f := range []*os.File{sh.stdout, sh.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// lastWords kills an interpreter that did not park and returns its standard error as ": TEXT".
func (sh *shell) lastWords() string {
	sh.sb.Kill()
	<-sh.sb.Done()
	words, _ := io.ReadAll(io.LimitReader(sh.stderr, 4<<10))
	if words = bytes.TrimSpace(words); len(words) == 0 {
		return ""
	}
	return ": " + string(words)
}

// take returns a parked interpreter with enough room for f, or nil.
func (p *shellPool) take(f *function) *shell {
	// The interpreter's memory must leave a fifth of the function's limit free: else the kernel
	// would reclaim pages while the event waits.
	if f.config.Resources.MemoryBytes < p.charged.Load()/4*5 {
		return nil
	}
	return p.lease()
}

// lease returns a parked interpreter, or nil if none is ready.
func (p *shellPool) lease() *shell {
	waiting := p.pool.Load()
	if waiting == nil {
		return nil
	}
	sh, ok := waiting.TryTake()
	if !ok {
		return nil
	}
	p.all.parked.Add(-sh.bytes)
	close(sh.taken)
	return sh
}

func (p *shellPool) stats() *ShellStats {
	out := &ShellStats{Bytes: p.bytes.Load()}
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
func (f *function) newFurniture() *furniture {
	out := &furniture{load: channel.Load{Handler: f.config.Handler, Dir: "/function", Env: map[string]string{}}}
	for _, v := range f.environment() { // the last of equal names counts, as in Python and Node
		name, value, _ := strings.Cut(v, "=")
		out.load.Env[name] = value
	}
	if text, err := json.Marshal(out.load); err != nil || len(text) > channel.MaxMeta {
		return nil
	}
	rootfs := f.e.cfg.Store.Rootfs(f.image.Digest)
	for _, target := range f.config.Shell.Mounts {
		source := filepath.Join(rootfs, target)
		if _, err := os.Lstat(source); err == nil { // a function without packages may lack the directory
			out.mount = append(out.mount, sandbox.Mount{Source: source, Target: target})
		}
	}
	return out
}

// bootShell makes the instance from a parked interpreter, up to LOAD. It returns false if none
// could be used; then the instance is unchanged.
func (in *instance) bootShell(ctx context.Context, secrets []sandbox.Secret) (bool, error) {
	f := in.f
	if f.shells == nil {
		return false, nil
	}
	for sh := f.shells.take(f); sh != nil; sh = f.shells.take(f) {
		err := sh.sb.Furnish(sandbox.Furnishing{
			Work: f.work, Mounts: f.furniture.mount, Secrets: secrets, Hostname: f.plain, Limits: limitsOf(f.config.Resources),
		})
		switch {
		case err == nil:
			return true, in.become(ctx, sh)
		case errors.Is(err, os.ErrProcessDone):
			f.shells.all.died.Add(1)
			sh.drop()
		default:
			sh.drop()
			f.e.log.WarnContext(ctx, "parked interpreter not usable: the interpreter starts with the event", "function", f.name, "error", err)
			return false, nil
		}
	}
	return false, nil
}

// become turns a furnished interpreter into the instance in.
func (in *instance) become(ctx context.Context, sh *shell) error {
	f := in.f
	cfg := f.channelConfig(sh.id, func() *sandbox.Sandbox { return sh.sb })
	sh.config.Store(&cfg)
	f.logs.Follow(f.e.life, live.Output{Stream: "stdout", R: sh.stdout, Revision: f.revision}, sh.id)
	f.logs.Follow(f.e.life, live.Output{Stream: "stderr", R: sh.stderr, Revision: f.revision}, sh.id)
	in.conn, in.kind = sh.conn, StartRuntime
	in.box = in.newBox(sh.id)
	f.e.boxes.Adopt(in.box, sh.sb)
	return in.conn.Load(ctx, &f.furniture.load)
}

var (
	shellsDesc     = prometheus.NewDesc("fre_parked_interpreters", "Parked interpreters.", []string{"base"}, nil)
	shellBytesDesc = prometheus.NewDesc("fre_parked_interpreter_bytes", "Memory of a parked interpreter.", []string{"base"}, nil)
	shellsDiedDesc = prometheus.NewDesc("fre_parked_interpreters_died_total", "Parked interpreters that ended before use.", nil, nil)
)

// Describe is part of prometheus.Collector.
func (s *shells) Describe(out chan<- *prometheus.Desc) {
	out <- shellsDesc
	out <- shellBytesDesc
	out <- shellsDiedDesc
}

// Collect is part of prometheus.Collector. Pools of one base are added up: of several versions,
// usually all but the newest are about to go.
func (s *shells) Collect(out chan<- prometheus.Metric) {
	total := map[string]*ShellStats{}
	s.mu.Lock()
	for _, p := range s.pools {
		one := p.stats()
		sum := total[p.config.Base]
		if sum == nil {
			sum = &ShellStats{}
			total[p.config.Base] = sum
		}
		sum.Ready += one.Ready
		sum.Bytes = max(sum.Bytes, one.Bytes)
	}
	s.mu.Unlock()
	for base, sum := range total {
		out <- prometheus.MustNewConstMetric(shellsDesc, prometheus.GaugeValue, float64(sum.Ready), base)
		out <- prometheus.MustNewConstMetric(shellBytesDesc, prometheus.GaugeValue, float64(sum.Bytes), base)
	}
	out <- prometheus.MustNewConstMetric(shellsDiedDesc, prometheus.CounterValue, float64(s.died.Load()))
}
