package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// fileSizes lists the sizes of the static files.
var fileSizes = []int{100, 64 << 10, 512 << 10, 2 << 20}

//go:embed function.py
var functionPy []byte

// bench holds the state of the benchmark inside the namespace.
type bench struct {
	options
	cpus    [2]int // servers, client
	client  testbed.Client
	dir     string
	engine  *testdaemon.Daemon
	servers map[string]*testbed.Server
	skipped []string
}

// Names of servers.
const (
	engineServer = "fre"
	pythonServer = "python"
	nginxServer  = "nginx"
	h2oServer    = "h2o"
)

// start starts all servers on the servers' CPU. Servers that are not installed are skipped.
func (b *bench) start(ctx context.Context) error {
	b.servers = map[string]*testbed.Server{}
	if err := os.Mkdir(filesDir(b.dir), 0o755); err != nil {
		return err
	}
	for _, size := range fileSizes {
		if err := os.WriteFile(filepath.Join(filesDir(b.dir), strconv.Itoa(size)), body[:size], 0o644); err != nil {
			return err
		}
	}
	return testbed.OnCPU(b.cpus[0], func() error {
		d, err := startEngine(ctx, b.options, b.dir)
		if err != nil {
			return err
		}
		b.engine = d
		b.servers[engineServer] = &testbed.Server{Addr: d.Addr(), PID: d.PID(), Alone: true, Heap: func(ctx context.Context) (testbed.Heap, error) { return testbed.GoHeap(ctx, d.URL("/metrics")) }}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for _, role := range []string{roleFunction, roleProxy, roleFiles, rolePlain} {
			s, err := testbed.Serve(self, "-inside", b.dir, "-role", role)
			if err != nil {
				return err
			}
			b.servers[role] = s
		}
		files := b.servers[roleFiles]
		files.Heap = func(ctx context.Context) (testbed.Heap, error) {
			text, err := testbed.Get(ctx, "http://"+files.Addr+mallocsPath)
			if err != nil {
				return testbed.Heap{}, err
			}
			n, err := strconv.ParseUint(text, 10, 64)
			return testbed.Heap{Mallocs: n}, err
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

func (b *bench) startPython() error {
	python := testbed.Look("python3")
	if python == "" {
		b.skipped = append(b.skipped, "no python3 here: the function in Python has no peer")
		return nil
	}
	script := filepath.Join(b.dir, "function.py")
	if err := os.WriteFile(script, functionPy, 0o644); err != nil {
		return err
	}
	s, err := testbed.Serve(python, "-S", "-E", script, pythonSocket(b.dir))
	if err != nil {
		return err
	}
	b.servers[pythonServer] = s
	return nil
}

// nginxSites lists the sites of nginx. Each site has a port of its own.
var nginxSites = []string{"static, nopush on", "static, nopush off", "go", "python"}

// The buffers are large enough for nginx to keep answers off the disk and to avoid many small
// reads. All other settings are nginx's defaults.
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

// h2Site is nginx's site for HTTP/2.
const h2Site = "static, HTTP/2"

func (b *bench) startNginx(ctx context.Context) error {
	nginx := testbed.Look("nginx")
	if nginx == "" {
		b.skipped = append(b.skipped, "no nginx here: scripts/deps.sh bench")
		return nil
	}
	sites := append(append([]string{}, nginxSites...), h2Site)
	addrs := make([]string, len(sites))
	for i := range sites {
		addr, err := testdaemon.FreeAddress()
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
	s, err := testbed.Spawn(ctx, addrs[len(addrs)-1], nginx, "-e", "stderr", "-c", path)
	if err != nil {
		return err
	}
	b.servers[nginxServer] = s
	for i, site := range sites {
		b.servers[nginxServer+", "+site] = &testbed.Server{Addr: addrs[i], PID: s.PID}
	}
	return nil
}

func (b *bench) startH2O(ctx context.Context) error {
	h2o := testbed.Look("h2o")
	if h2o == "" {
		b.skipped = append(b.skipped, "no h2o here: scripts/deps.sh bench")
		return nil
	}
	addr, err := testdaemon.FreeAddress()
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
	s, err := testbed.Spawn(ctx, addr, h2o, "-c", path)
	if err != nil {
		return err
	}
	b.servers[h2oServer] = s
	return nil
}

func (b *bench) close() error {
	var errs []error
	for _, s := range b.servers {
		if s.Stop != nil {
			errs = append(errs, s.Stop())
		}
	}
	if b.engine != nil {
		errs = append(errs, stopEngine(b.engine))
	}
	return errors.Join(errs...)
}
