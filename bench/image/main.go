// Command image measures the disk usage of function images: one web function in each of Node,
// Python, Java, PHP and as a native program, built by FRE. The peer is a Docker image of the same
// function: Debian's minimal system (mmdebstrap's variant minbase), Debian's packages of the
// language, and the function. The packages are installed as in a Dockerfile: apt-get install
// --no-install-recommends, lists and archives removed.
//
// Docker's sizes are sums over the bytes of all files, as Docker counts. The minimal system counts
// once in every image, as for images of five publishers, and alternatively once as a shared layer.
//
//	go run ./bench/image        # as root, from the project's root directory
//
// The command prints Markdown tables and writes the numbers as JSON to bench/results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/engine"
	"github.com/fre-engine/fre/bench/internal/host"
	"github.com/fre-engine/fre/bench/internal/report"
)

type options struct {
	engine.Options
	results string
	summary string
	quick   bool
}

func main() {
	o := options{}
	o.Register(flag.CommandLine)
	flag.StringVar(&o.results, "results", "bench/results", "directory for the raw result")
	flag.StringVar(&o.summary, "summary", "", "file to write the tables to, as well")
	flag.BoolVar(&o.quick, "quick", false, "one language, to see that it works")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/image:", err)
		os.Exit(1)
	}
}

// languages lists the languages of the paper's figures, with the packages in the Dockerfile.
var languages = []struct {
	name, template string
	packages       []string // Debian's
}{
	{"native", "bench/functions/native-clock", nil},
	{"python", "templates/python-hello", []string{"python3"}},
	{"node", "templates/node-hello", []string{"nodejs"}},
	{"php", "templates/php-hello", []string{"php-cli"}},
	{"java", "templates/java-hello", []string{"default-jre-headless"}},
}

type result struct {
	Host   host.Info `json:"host"`
	Images []size    `json:"images"`
	All    together  `json:"together"`
}

// size holds the sizes of a language's images, in bytes.
type size struct {
	Language    string `json:"language"`
	FRE         int64  `json:"fre"`
	FREFiles    int64  `json:"fre_files"`
	Docker      int64  `json:"docker"`
	DockerFiles int64  `json:"docker_files"`
}

// together holds the sizes of all images together, in bytes.
type together struct {
	FRE          int64 `json:"fre"`            // the store's files, each once
	Docker       int64 `json:"docker"`         // images without shared layers
	DockerShared int64 `json:"docker_shared"`  // images on a shared layer of the minimal system
	Minimal      int64 `json:"minimal_system"` // the shared layer
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("run it as root: sandboxes and chroots need it")
	}
	info, err := host.Describe(ctx, nil)
	if err != nil {
		return err
	}
	e, err := engine.Open(ctx, o.Options)
	if err != nil {
		return err
	}
	defer func() { _ = e.Close() }()
	r := &result{Host: info}
	stored := inodes{}
	todo := languages
	if o.quick {
		todo = todo[:1]
	}
	minimal, err := debian(ctx, filepath.Join(e.Dir(), "minimal"), nil)
	if err != nil {
		return err
	}
	r.All.Minimal = minimal.bytes
	for _, l := range todo {
		if err := r.measure(ctx, e, stored, l.name, l.template, l.packages); err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	text := page(r)
	fmt.Print(text)
	if _, err := report.Raw(o.results, "image", time.Now(), r); err != nil {
		return err
	}
	return report.Page(o.summary, "Images", "image", text)
}

func (r *result) measure(ctx context.Context, e *engine.Engine, stored inodes, name, template string, packages []string) error {
	fmt.Fprintf(os.Stderr, "%s\n", name)
	function := "bench-size-" + name
	copied, err := e.Deploy(ctx, template, function)
	if err != nil {
		return err
	}
	deployed, err := engine.JSON[api.FunctionDetails](ctx, e, "function", "inspect", function)
	if err != nil {
		return err
	}
	s := size{Language: name}
	for _, f := range deployed {
		alone, err := inodes{}.measure(e.Rootfs(f.Image))
		if err != nil {
			return err
		}
		s.FRE, s.FREFiles = alone.bytes, alone.files
		more, err := stored.measure(e.Rootfs(f.Image))
		if err != nil {
			return err
		}
		r.All.FRE += more.bytes
	}
	tree, err := debian(ctx, filepath.Join(e.Dir(), "docker-"+name), packages)
	if err != nil {
		return err
	}
	code, err := inodes{}.measure(copied)
	if err != nil {
		return err
	}
	s.Docker, s.DockerFiles = tree.bytes+code.bytes, tree.files+code.files
	r.Images = append(r.Images, s)
	r.All.Docker += s.Docker
	if r.All.DockerShared == 0 {
		r.All.DockerShared = r.All.Minimal
	}
	r.All.DockerShared += s.Docker - r.All.Minimal
	return nil
}

// tree holds the size of a directory tree.
type tree struct{ bytes, files int64 }

// debian makes the file system of a Debian image with packages, measures the files and removes
// them.
func debian(ctx context.Context, dir string, packages []string) (tree, error) {
	args := []string{"--quiet", "--variant=minbase", "--include=" + strings.Join(packages, ","), "--aptopt=APT::Install-Recommends \"false\"", codename(), dir}
	if len(packages) == 0 {
		args = append(args[:2], args[3:]...)
	}
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return tree{}, fmt.Errorf("mmdebstrap %s: %w (make deps-bench installs it)", strings.Join(args, " "), err)
	}
	t, err := inodes{}.measure(dir)
	return t, errors.Join(err, os.RemoveAll(dir))
}

// codename returns the host's Debian release. FRE's bases contain packages of the same release.
func codename() string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// inodes is the set of files counted already.
type inodes map[uint64]bool

// measure sums up the bytes of the files below a directory that are not counted yet.
func (seen inodes) measure(dir string) (t tree, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		t.files++
		t.bytes += info.Size()
		return nil
	})
	return t, err
}

func page(r *result) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s\n", r.Host.Markdown())
	p("## Figure 11: sizes of images\n\nOne web function in each language; MB (10⁶ bytes) of files. Docker's image is Debian's minimal system, the distribution's package of the language and the function.\n")
	p("| language | FRE | files | Docker | files | FRE ÷ Docker |\n|---|---:|---:|---:|---:|---:|")
	var sum float64
	for _, s := range r.Images {
		ratio := float64(s.FRE) / float64(s.Docker)
		sum += ratio
		p("| %s | %.1f | %d | %.1f | %d | %.2f |", s.Language, mb(s.FRE), s.FREFiles, mb(s.Docker), s.DockerFiles, ratio)
	}
	p("| average | | | | | %.2f |\n", sum/float64(len(r.Images)))
	p("All together on disk: FRE %.1f MB (each file once), Docker %.1f MB where the images share nothing (%.2f), %.1f MB on one shared layer of the minimal system of %.1f MB (%.2f).\n",
		mb(r.All.FRE), mb(r.All.Docker), float64(r.All.FRE)/float64(r.All.Docker), mb(r.All.DockerShared), mb(r.All.Minimal), float64(r.All.FRE)/float64(r.All.DockerShared))
	return b.String()
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }
