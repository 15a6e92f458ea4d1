package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/dockerd"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/memory"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// languages lists the languages of the figures with their templates. A language without a template
// is reported as skipped.
var languages = []struct{ name, template string }{
	{"python", "templates/python-hello"},
	{"native", "bench/functions/native-warm"},
	{"node", "templates/node-hello"},
	{"java", "templates/java-hello"},
	{"php", "templates/php-hello"},
}

// mixed names the set of all languages.
const mixed = "mixed"

// pairs lists pairs of functions in separate images. The functions of a pair have the named parts
// in common.
var pairs = []struct{ common, first, second string }{
	{"Python", "templates/python-hello", "templates/python-lxml"},
	{"Python, NumPy, Pillow", "templates/python-thumbnail", "templates/python-thumbnail"},
}

// holding holds the memory of a set's instances on one platform.
type holding struct {
	Set       string `json:"set"` // a language, or mixed
	Platform  string `json:"platform"`
	Instances int    `json:"instances"`
	// In bytes, one value per round.
	Processes []int64 `json:"processes_pss"` // the instances' own processes
	Helpers   []int64 `json:"helpers_pss"`   // growth of the platform's own processes: engine, shims
	Available []int64 `json:"available"`     // decrease of the host's available memory
}

// pair holds the memory of two instances on one platform. The instances' images have much in
// common, and start with none of their files in the page cache.
type pair struct {
	Common   string `json:"common"`
	Platform string `json:"platform"`
	// In bytes, one value per round.
	Cached    []int64 `json:"cached"`        // of the files of both images
	Processes []int64 `json:"processes_pss"` // the instances' own processes
	Helpers   []int64 `json:"helpers_pss"`   // growth of the platform's own processes
}

// web is a function that answers HTTP events. All platforms run the same files, the same command
// and the same bootstrap.
type web struct {
	name   string
	event  testdaemon.Event // has a nonempty body
	rootfs string
	config config
}

// function returns the function's deployed name.
func (w *web) function() string { return "bench-web-" + w.name }

// config holds the required fields of an image's configuration.
type config struct {
	Args      []string `json:"args"`
	Env       []string `json:"env"`
	Resources struct {
		MemoryBytes int64 `json:"memory_bytes"`
		CPUMillis   int64 `json:"cpu_millis"`
		Pids        int64 `json:"pids"`
	} `json:"resources"`
}

// platform is a way to run web functions.
type platform interface {
	name() string

	// start runs n further instances. Each has answered one event when start returns.
	start(ctx context.Context, w *web, n int) error

	// processes returns the processes of all instances, helpers the platform's own processes.
	processes(ctx context.Context) ([]int, error)
	helpers() ([]int, error)

	// stop ends all instances.
	stop(ctx context.Context) error
}

func (r *result) measureMemory(ctx context.Context, e *engine.Engine, d *dockerd.Engine) (err error) {
	webs, err := r.deployWebs(ctx, e)
	if err != nil {
		return err
	}
	bare, err := newBare(ctx, webs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.close()) }()
	platforms := []platform{bare, &underFRE{engine: e}}
	if d != nil {
		var twins [][]*web
		all := slices.Clone(webs)
		for i, p := range pairs {
			first, err := deployWeb(ctx, e, fmt.Sprintf("pair-%d-first", i), p.first, 1)
			if err != nil {
				return err
			}
			second, err := deployWeb(ctx, e, fmt.Sprintf("pair-%d-second", i), p.second, 1)
			if err != nil {
				return err
			}
			twins = append(twins, []*web{first, second})
			all = append(all, first, second)
		}
		docker, err := newDocker(ctx, d, all, e.Dir())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, docker.close()) }()
		platforms = append(platforms, docker)
		for i, p := range pairs {
			if err := r.measurePair(ctx, p.common, twins[i], platforms[1], []string{twins[i][0].rootfs, twins[i][1].rootfs}); err != nil {
				return err
			}
			if err := r.measurePair(ctx, p.common, twins[i], docker, []string{d.Layers()}); err != nil {
				return err
			}
		}
		if err := cacheAlike(ctx, webs, d); err != nil {
			return err
		}
	}
	for range r.Size.Memory {
		for _, w := range webs {
			if err := r.measureSet(ctx, w.name, []*web{w}, platforms); err != nil {
				return err
			}
		}
		if err := r.measureSet(ctx, mixed, webs, platforms); err != nil {
			return err
		}
	}
	return nil
}

// cacheAlike reads all platforms' files from the disk from end to end, to bring them into the page
// cache in the same way. The part of a file that a process maps depends on how the pages came into
// the cache: right after docker's import had written Python's executable, a process mapped a fifth
// less of it than after reading.
func cacheAlike(ctx context.Context, webs []*web, d *dockerd.Engine) error {
	if err := memory.DropFiles(); err != nil {
		return err
	}
	dirs := []string{d.Layers()}
	for _, w := range webs {
		dirs = append(dirs, w.rootfs)
	}
	for _, dir := range dirs {
		tar := exec.CommandContext(ctx, "tar", "--directory", dir, "--create", ".")
		tar.Stdout = io.Discard // through a pipe: with /dev/null tar reads nothing
		if err := tar.Run(); err != nil {
			return fmt.Errorf("read %s: %w", dir, err)
		}
	}
	return nil
}

// deployWebs builds the functions with FRE. The other platforms then use the same files.
func (r *result) deployWebs(ctx context.Context, e *engine.Engine) ([]*web, error) {
	var webs []*web
	for _, l := range languages[:r.Size.Languages] {
		if _, err := os.Stat(l.template); errors.Is(err, fs.ErrNotExist) {
			r.Skipped = append(r.Skipped, fmt.Sprintf("%s in figures 9 and 10: there is no %s yet", l.name, l.template))
			continue
		}
		w, err := deployWeb(ctx, e, l.name, l.template, r.Size.Instances)
		if err != nil {
			return nil, err
		}
		webs = append(webs, w)
		r.Languages = append(r.Languages, l.name)
	}
	return webs, nil
}

func deployWeb(ctx context.Context, e *engine.Engine, name, template string, instances int) (*web, error) {
	w := &web{name: name}
	// max is twice the instances, because events with chunked bodies may take only half of max.
	dir, err := e.DeployWith(ctx, template, w.function(), map[string]any{"instances": map[string]any{
		"isolation": "instance", "concurrency": 1, "max": 2 * instances, "idle": "1h",
	}})
	if err != nil {
		return nil, err
	}
	test, err := testdaemon.LoadCase(dir, w.function())
	if err != nil {
		return nil, err
	}
	if w.event = test.Event; w.event.Body == "" {
		w.event.Body = "x"
	}
	functions, err := engine.JSON[api.FunctionDetails](ctx, e, "function", "inspect", w.function())
	if err != nil {
		return nil, err
	}
	w.rootfs = e.Rootfs(functions[0].Image)
	if err := json.Unmarshal(functions[0].Config, &w.config); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", w.function(), err)
	}
	return w, nil
}

// measurePair starts both functions on one platform with an empty page cache. dirs lists the
// directories of the images' files.
func (r *result) measurePair(ctx context.Context, common string, webs []*web, p platform, dirs []string) error {
	v := &pair{Common: common, Platform: p.name()}
	r.Pairs = append(r.Pairs, v)
	for range r.Size.Memory {
		if err := v.measure(ctx, webs, p, dirs); err != nil {
			return fmt.Errorf("two images, %s: %w", p.name(), err)
		}
	}
	return nil
}

func (v *pair) measure(ctx context.Context, webs []*web, p platform, dirs []string) (err error) {
	defer func() { err = errors.Join(err, p.stop(context.WithoutCancel(ctx))) }()
	if err := memory.DropFiles(); err != nil {
		return err
	}
	before, err := measureNow(ctx, p)
	if err != nil {
		return err
	}
	for _, w := range webs {
		if err := p.start(ctx, w, 1); err != nil {
			return err
		}
	}
	after, err := measureNow(ctx, p)
	if err != nil {
		return err
	}
	cached, err := memory.Cached(dirs...)
	v.Cached = append(v.Cached, cached)
	v.Processes = append(v.Processes, after.processes)
	v.Helpers = append(v.Helpers, after.helpers-before.helpers)
	return err
}

// measureSet runs the same number of instances of each function, one platform after another.
func (r *result) measureSet(ctx context.Context, name string, webs []*web, platforms []platform) error {
	for _, p := range platforms {
		if err := r.measureOn(ctx, p, name, webs); err != nil {
			return fmt.Errorf("%s, %s: %w", name, p.name(), err)
		}
	}
	return nil
}

func (r *result) measureOn(ctx context.Context, p platform, name string, webs []*web) (err error) {
	defer func() { err = errors.Join(err, p.stop(context.WithoutCancel(ctx))) }()
	before, err := measureNow(ctx, p)
	if err != nil {
		return err
	}
	for _, w := range webs {
		if err := p.start(ctx, w, r.Size.Instances); err != nil {
			return err
		}
	}
	after, err := measureNow(ctx, p)
	if err != nil {
		return err
	}
	h := r.holding(name, p.name(), r.Size.Instances*len(webs))
	h.Processes = append(h.Processes, after.processes)
	h.Helpers = append(h.Helpers, after.helpers-before.helpers)
	h.Available = append(h.Available, before.available-after.available)
	return nil
}

// holding returns the results of a set on a platform, and adds them if missing.
func (r *result) holding(set, platform string, instances int) *holding {
	for _, h := range r.Memory {
		if h.Set == set && h.Platform == platform {
			return h
		}
	}
	h := &holding{Set: set, Platform: platform, Instances: instances}
	r.Memory = append(r.Memory, h)
	return h
}

// moment holds the memory of a platform at one time, in bytes.
type moment struct{ processes, helpers, available int64 }

func measureNow(ctx context.Context, p platform) (m moment, err error) {
	if err := host.Settle(ctx); err != nil {
		return m, err
	}
	if m.available, err = memory.Available(); err != nil {
		return m, err
	}
	processes, err := p.processes(ctx)
	if err != nil {
		return m, err
	}
	helpers, err := p.helpers()
	if err != nil {
		return m, err
	}
	helpers = slices.DeleteFunc(helpers, func(pid int) bool { return slices.Contains(processes, pid) })
	if m.processes, err = memory.PSS(processes); err != nil {
		return m, err
	}
	m.helpers, err = memory.PSS(helpers)
	return m, err
}
