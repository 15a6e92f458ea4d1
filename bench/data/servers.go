package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/fre-engine/fre/internal/daemon"
)

// fileSizes are those of the static files.
var fileSizes = []int{100, 64 << 10, 512 << 10, 2 << 20}

//go:embed function.py
var functionPy []byte

// bench is what runs in the namespace.
type bench struct {
	options
	cpus    [2]int // servers, client
	dir     string
	engine  *daemon.Daemon
	servers map[string]*server
	skipped []string
}

// server is one to be measured.
type server struct {
	addr    string
	pid     int
	cmd     *exec.Cmd // nil for the engine
	stop    func() error
	mallocs func(context.Context) (uint64, error) // nil: not known
}

// names of servers.
const (
	engineServer = "fre"
	pythonServer = "python"
	nginxServer  = "nginx"
	h2oServer    = "h2o"
)

// start starts everything, on the servers' CPU. What is not installed is skipped.
func (b *bench) start(ctx context.Context) error {
	b.servers = map[string]*server{}
	if err := os.Mkdir(filesDir(b.dir), 0o755); err != nil {
		return err
	}
	for _, size := range fileSizes {
		if err := os.WriteFile(filepath.Join(filesDir(b.dir), strconv.Itoa(size)), body[:size], 0o644); err != nil {
			return err
		}
	}
	return onCPU(b.cpus[0], func() error {
		d, err := startEngine(ctx, b.options, b.dir)
		if err != nil {
			return err
		}
		b.engine = d
		b.servers[engineServer] = &server{addr: d.Addr(), pid: d.PID(), mallocs: func(ctx context.Context) (uint64, error) { return goMallocs(ctx, d.URL("/metrics")) }}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for _, role := range []string{roleFunction, roleProxy, roleFiles, rolePlain} {
			s, err := start(self, "-inside", b.dir, "-role", role)
			if err != nil {
				return err
			}
			b.servers[role] = s
		}
		files := b.servers[roleFiles]
		files.mallocs = func(ctx context.Context) (uint64, error) {
			text, err := get(ctx, "http://"+files.addr+mallocsPath)
			if err != nil {
				return 0, err
			}
			return strconv.ParseUint(text, 10, 64)
		}
		if err := b.startPython(); err != nil {
			return err
		}
		if err := b.startNginx(ctx); err != nil {
			return err
		}
		return b.startH2O(ctx)
	})
}

// start runs a server that prints its address, and serves until its standard
// input ends.
func start(name string, args ...string) (*server, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{pid: cmd.Process.Pid, cmd: cmd, stop: func() error { return errors.Join(stdin.Close(), cmd.Wait()) }}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: its address: %w", strings.Join(args, " "), err), s.stop())
	}
	s.addr = strings.TrimSpace(line)
	return s, nil
}

func (b *bench) startPython() error {
	python := look("python3")
	if python == "" {
		b.skipped = append(b.skipped, "no python3 here: the function in Python has no peer")
		return nil
	}
	script := filepath.Join(b.dir, "function.py")
	if err := os.WriteFile(script, functionPy, 0o644); err != nil {
		return err
	}
	s, err := start(python, "-S", "-E", script, pythonSocket(b.dir))
	if err != nil {
		return err
	}
	b.servers[pythonServer] = s
	return nil
}

// nginxSites are nginx's servers, each with a port of its own.
var nginxSites = []string{"static, nopush on", "static, nopush off", "go", "python"}

// The buffers are what it needs not to write answers to disk, or to read them in
// many small pieces; all else is as it ships.
var nginxConf = template.Must(template.New("nginx.conf").Parse(`daemon off;
user root;
worker_processes 1;
pid {{.Dir}}/nginx.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
	access_log off;
	sendfile on;
	keepalive_requests 1000000000;
	keepalive_timeout 600s;
	default_type application/octet-stream;
	open_file_cache max=100;
	client_body_temp_path {{.Dir}}/nginx-body;
	proxy_temp_path {{.Dir}}/nginx-proxy;
	fastcgi_temp_path {{.Dir}}/nginx-fastcgi;
	uwsgi_temp_path {{.Dir}}/nginx-uwsgi;
	scgi_temp_path {{.Dir}}/nginx-scgi;
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	proxy_buffers 32 64k;
	proxy_buffer_size 64k;
	proxy_busy_buffers_size 512k;
	proxy_max_temp_file_size 0;
	upstream go { server unix:{{.Go}}; keepalive 256; keepalive_requests 1000000000; }
	upstream python { server unix:{{.Python}}; keepalive 256; keepalive_requests 1000000000; }
	server { listen {{index .Addrs 0}}; root {{.Files}}; tcp_nopush on; }
	server { listen {{index .Addrs 1}}; root {{.Files}}; tcp_nopush off; }
	server { listen {{index .Addrs 2}}; location / { proxy_pass http://go; } }
	server { listen {{index .Addrs 3}}; location / { proxy_pass http://python; } }
	server { listen {{index .Addrs 4}} http2; root {{.Files}}; tcp_nopush on; http2_max_requests 1000000000; }
}
`))

// h2Site is nginx's of HTTP/2.
const h2Site = "static, HTTP/2"

func (b *bench) startNginx(ctx context.Context) error {
	nginx := look("nginx")
	if nginx == "" {
		b.skipped = append(b.skipped, "no nginx here: scripts/deps.sh bench")
		return nil
	}
	sites := append(append([]string{}, nginxSites...), h2Site)
	addrs := make([]string, len(sites))
	for i := range sites {
		addr, err := daemon.FreeAddress()
		if err != nil {
			return err
		}
		addrs[i] = addr
	}
	var conf strings.Builder
	if err := nginxConf.Execute(&conf, map[string]any{
		"Dir": b.dir, "Files": filesDir(b.dir), "Addrs": addrs, "Go": functionSocket(b.dir), "Python": pythonSocket(b.dir),
	}); err != nil {
		return err
	}
	path := filepath.Join(b.dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o644); err != nil {
		return err
	}
	s, err := b.spawn(ctx, addrs[len(addrs)-1], nginx, "-e", "stderr", "-c", path)
	if err != nil {
		return err
	}
	b.servers[nginxServer] = s
	for i, site := range sites {
		b.servers[nginxServer+", "+site] = &server{addr: addrs[i], pid: s.pid}
	}
	return nil
}

func (b *bench) startH2O(ctx context.Context) error {
	h2o := look("h2o")
	if h2o == "" {
		b.skipped = append(b.skipped, "no h2o here: scripts/deps.sh bench")
		return nil
	}
	addr, err := daemon.FreeAddress()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, "h2o.conf")
	conf := fmt.Sprintf("user: root\nlisten:\n  host: %s\n  port: %s\nnum-threads: 1\nhosts:\n  default:\n    paths:\n      /:\n        file.dir: %s\n", host, port, filesDir(b.dir))
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return err
	}
	s, err := b.spawn(ctx, addr, h2o, "-c", path)
	if err != nil {
		return err
	}
	b.servers[h2oServer] = s
	return nil
}

// look finds a program, in no user's PATH maybe; "" if it is not there.
func look(name string) string {
	for _, path := range []string{name, "/usr/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	return ""
}

func nginxVersion(ctx context.Context) string {
	nginx := look("nginx")
	if nginx == "" {
		return "none"
	}
	out, err := exec.CommandContext(ctx, nginx, "-v").CombinedOutput() // on standard error
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(out))
}

// spawn runs a server that ends with SIGTERM, and waits until it accepts.
func (b *bench) spawn(ctx context.Context, addr, name string, args ...string) (*server, error) {
	cmd := exec.Command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	s := &server{addr: addr, pid: cmd.Process.Pid, cmd: cmd, stop: func() error {
		_ = cmd.Process.Signal(os.Interrupt) // a fast end; it may have ended
		<-ended
		return nil
	}}
	err := daemon.Until(ctx, func() error {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		if _, gone := os.Stat(fmt.Sprintf("/proc/%d/root", cmd.Process.Pid)); errors.Is(gone, fs.ErrNotExist) {
			return fmt.Errorf("%s ended: %s", name, stderr.String())
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (b *bench) close() error {
	var errs []error
	for _, s := range b.servers {
		if s.stop != nil {
			errs = append(errs, s.stop())
		}
	}
	if b.engine != nil {
		errs = append(errs, stopEngine(b.engine))
	}
	return errors.Join(errs...)
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return string(text), err
}

// goMallocs reads a Go program's metrics.
func goMallocs(ctx context.Context, url string) (uint64, error) {
	text, err := get(ctx, url)
	if err != nil {
		return 0, err
	}
	return metric(text, "go_memstats_mallocs_total")
}

// metric finds a metric without labels in Prometheus' text.
func metric(text, name string) (uint64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return uint64(f), err
		}
	}
	return 0, fmt.Errorf("no %s among the metrics", name)
}
