package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/video/asset"
)

// bench holds the state of the benchmark inside the namespace.
type bench struct {
	options
	cpus    [2]int // servers, client
	client  testbed.Client
	dir     string
	servers map[string]*testbed.Server

	segments int // of the film
	stops    []func() error
	skipped  []string
}

// coldBytes has room for the segments in transfer on all connections, and for few more. When the
// whole film has been requested once, the cache no longer holds the first segments.
const coldBytes = 22 << 20

// Names of servers.
const (
	videoServer  = "fre-video"
	coldServer   = "fre-video that has no room for the film"
	beforeServer = "before"
	nginxOn      = "nginx, nopush on"
	nginxOff     = "nginx, nopush off"
	vodServer    = "nginx-vod"
)

// start starts all servers on the servers' CPU. Servers that are not installed are skipped.
func (b *bench) start(ctx context.Context) error {
	b.servers = map[string]*testbed.Server{}
	film, err := readAsset(b.dir, filmAsset)
	if err != nil {
		return err
	}
	b.segments = len(film.Rendition(filmRendition).Segments)
	return testbed.OnCPU(b.cpus[0], func() error {
		if err := b.startVideo(ctx, videoServer, b.video, stateDir(b.dir)); err != nil {
			return err
		}
		if err := b.startOnCopy(ctx, coldServer, b.video, "cold", "--cache-bytes", strconv.Itoa(coldBytes)); err != nil {
			return err
		}
		if b.before != "" {
			if err := b.startOnCopy(ctx, beforeServer, b.before, "before"); err != nil {
				return err
			}
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		for _, role := range []string{rolePlain, rolePooled, roleSendFile} {
			s, err := testbed.Serve(self, "-inside", b.dir, "-role", role)
			if err != nil {
				return err
			}
			s.Heap = heapOf(s)
			b.servers[role] = s
			b.stops = append(b.stops, s.Stop)
		}
		return b.startNginx(ctx)
	})
}

func heapOf(s *testbed.Server) func(context.Context) (testbed.Heap, error) {
	return func(ctx context.Context) (testbed.Heap, error) {
		return testbed.GoHeap(ctx, "http://"+s.Addr+"/metrics")
	}
}

// startVideo starts fre-video. The engine's socket does not exist, because fre-video never calls
// the engine here.
func (b *bench) startVideo(ctx context.Context, name, program, state string, flags ...string) error {
	addr, err := testdaemon.FreeAddress()
	if err != nil {
		return err
	}
	flags = append([]string{"serve", "--state", state, "--listen", addr, "--engine", filepath.Join(b.dir, "no-engine.sock"), "--log-level", "error"}, flags...)
	s, err := testbed.Spawn(ctx, addr, program, flags...)
	if err != nil {
		return err
	}
	s.Heap = heapOf(s)
	b.servers[name] = s
	b.stops = append(b.stops, s.Stop)
	return nil
}

// startOnCopy starts another fre-video, on a copy of the state.
func (b *bench) startOnCopy(ctx context.Context, name, program, dir string, flags ...string) error {
	state := filepath.Join(b.dir, dir)
	if err := os.CopyFS(state, os.DirFS(stateDir(b.dir))); err != nil {
		return err
	}
	return b.startVideo(ctx, name, program, state, flags...)
}

// readAsset reads an asset's record from the library's files, without opening the library.
func readAsset(dir, id string) (*asset.Asset, error) {
	text, err := os.ReadFile(filepath.Join(stateDir(dir), "assets", id, "asset.json"))
	if err != nil {
		return nil, err
	}
	a := &asset.Asset{}
	return a, json.Unmarshal(text, a)
}

// playlists maps the names of nginx's files to fre-video's addresses.
var playlists = map[string]string{
	"master.m3u8": "/assets/" + filmAsset + "/hls/master.m3u8",
	"media.m3u8":  "/assets/" + filmAsset + "/hls/" + filmRendition + ".m3u8",
	"manifest":    "/assets/" + filmAsset + "/dash/manifest.mpd",
}

// The settings are nginx's defaults, except for logs, files kept open, and connections that are
// never closed. nginx-vod-module keeps everything in memory that it can keep in memory.
var nginxConf = template.Must(template.New("nginx.conf").Parse(`{{if .VOD}}load_module {{.VOD}};
{{end}}daemon off;
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
	server { listen {{.On}}; root {{.Dir}}/files; tcp_nopush on; }
	server { listen {{.Off}}; root {{.Dir}}/files; tcp_nopush off; }
{{if .VOD}}	server {
		listen {{.VODAddr}};
		tcp_nopush on;
		vod_mode local;
		vod_metadata_cache metadata 64m;
		vod_response_cache responses 64m;
		vod_segment_duration 4000;
		vod_align_segments_to_key_frames on;
		vod_secret_key "bench$vod_filepath";
		location /ts/ { vod hls; alias {{.Dir}}/media/; }
		location /aes/ { vod hls; vod_hls_encryption_method aes-128; alias {{.Dir}}/media/; }
		location /fmp4/ { vod hls; vod_hls_container_format fmp4; alias {{.Dir}}/media/; }
		location /cbcs/ { vod hls; vod_hls_container_format fmp4; vod_hls_encryption_method sample-aes; alias {{.Dir}}/media/; }
		location /dash/ { vod dash; alias {{.Dir}}/media/; }
	}
{{end}}}
`))

func (b *bench) startNginx(ctx context.Context) error {
	nginx := testbed.Look("nginx")
	if nginx == "" {
		b.skipped = append(b.skipped, "no nginx here: scripts/deps.sh bench")
		return nil
	}
	video := b.servers[videoServer]
	for name, path := range playlists {
		text, err := testbed.Get(ctx, "http://"+video.Addr+path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(filesDir(b.dir), name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if b.nginxVOD == "" {
		b.skipped = append(b.skipped, "no nginx-vod-module here (-nginx-vod): its rows are left out")
	}
	addrs := map[string]string{}
	for _, name := range []string{nginxOn, nginxOff, vodServer} {
		addr, err := testdaemon.FreeAddress()
		if err != nil {
			return err
		}
		addrs[name] = addr
	}
	var conf strings.Builder
	if err := nginxConf.Execute(&conf, map[string]string{"Dir": b.dir, "VOD": b.nginxVOD, "On": addrs[nginxOn], "Off": addrs[nginxOff], "VODAddr": addrs[vodServer]}); err != nil {
		return err
	}
	path := filepath.Join(b.dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o644); err != nil {
		return err
	}
	s, err := testbed.Spawn(ctx, addrs[nginxOff], nginx, "-e", "stderr", "-c", path)
	if err != nil {
		return fmt.Errorf("nginx: %w", err)
	}
	b.stops = append(b.stops, s.Stop)
	for name, addr := range addrs {
		if name != vodServer || b.nginxVOD != "" {
			b.servers[name] = &testbed.Server{Addr: addr, PID: s.PID}
		}
	}
	return nil
}

func (b *bench) close() error {
	var errs []error
	for _, stop := range b.stops {
		errs = append(errs, stop())
	}
	return errors.Join(errs...)
}
