package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/buffer"
	engine "github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/httpserver/accesslog"
	"github.com/fre-engine/fre/internal/command"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/live"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/origin"
	"github.com/fre-engine/fre/video/service"
	"github.com/fre-engine/fre/video/web"
)

const (
	defaultState = "/var/lib/fre-video"
	signedFor    = 6 * time.Hour
	livePrefix   = "/live"
)

// serveConfig holds the flags of fre-video serve.
type serveConfig struct {
	State, Listen, Engine, Import string
	RTMP, SRT                     string
	KeyFile                       string
	CacheBytes                    int64
	AccessLog                     string // file, "-" for stdout, "" for none
	TLSCert, TLSKey               string
	LogLevel                      string
	Service                       service.Config
	Drain                         time.Duration
}

// serveCommand runs the service. Only this file wires its parts together.
func serveCommand() *cobra.Command {
	var cfg serveConfig
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the service: uploads, transcoding on an engine, delivery",
		Long: `Run the video service in the foreground until SIGTERM or SIGINT.

Clients upload videos to http://LISTEN/v1/uploads/ (tus 1.0) or http://LISTEN/v1/assets.
The service deploys a transcoding function on the engine at --engine. Players find a
finished video at http://LISTEN/assets/ID/hls/master.m3u8 and
http://LISTEN/assets/ID/dash/manifest.mpd. After a crash of the service or the engine, the
work continues after the last finished chunk. http://LISTEN/v1/openapi.yaml describes the
API. See docs/video.md.`,
		Example: `  fre-video serve --listen 127.0.0.1:8090 --rtmp :1935`,
		Args:    command.Args(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), cfg) },
	}
	f := cmd.Flags()
	f.StringVar(&cfg.State, "state", defaultState, "state `directory`: sources and their renditions")
	f.StringVar(&cfg.Listen, "listen", defaultListen, "`address` of the API and of the videos")
	f.StringVar(&cfg.Engine, "engine", engine.DefaultSocket, "control socket `path` of the FRE engine")
	f.StringVar(&cfg.RTMP, "rtmp", "", "`address` for publishers of live streams over RTMP, such as :1935 (default no RTMP)")
	f.StringVar(&cfg.SRT, "srt", "", "`address` for publishers of live streams over SRT, such as :9710 (default no SRT)")
	f.StringVar(&cfg.Import, "import", "", "`directory` of files that the API may turn into assets by their path (default none)")
	f.StringVar(&cfg.KeyFile, "sign-key", "", "`file` with a key of 32 bytes or more for signed addresses; with a key, every request needs a signature")
	f.Int64Var(&cfg.CacheBytes, "cache-bytes", 256<<20, "memory in `bytes` for segments made on request (MPEG-TS, encrypted), including segments still being sent")
	f.StringVar(&cfg.AccessLog, "access-log", "", "`file` for one line of JSON for each answer below /assets; - for standard output")
	f.StringVar(&cfg.TLSCert, "tls-cert", "", "`file` with the certificate and its chain in PEM")
	f.StringVar(&cfg.TLSKey, "tls-key", "", "`file` with the certificate's key in PEM")
	f.StringVar(&cfg.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&cfg.Drain, "drain", 30*time.Second, "how long a graceful stop waits for unfinished answers")
	f.StringVar(&cfg.Service.Function, "function", "fre-video-transcoder", "`name` of the transcoding function on the engine")
	f.IntVar(&cfg.Service.Slots, "slots", 0, "maximum `number` of jobs at a time (default the number of CPUs)")
	f.IntVar(&cfg.Service.Rungs, "rungs", 4, "maximum `number` of renditions of the pictures")
	f.StringVar(&cfg.Service.Codec, "codec", media.H264, "default `codec` of pictures: h264, hevc or av1; an upload may choose another codec")
	f.StringVar(&cfg.Service.Preset, "preset", "veryfast", "`preset` of x264 and x265, from ultrafast to slow; SVT-AV1 uses a preset of similar speed")
	f.DurationVar(&cfg.Service.MostDuration, "max-duration", 12*time.Hour, "longest video; the service refuses a source that claims and has more, and cuts a source that claims less; at most 16h with sound")
	f.Int64Var(&cfg.Service.MostBytes, "max-bytes", 50<<30, "largest source in `bytes`")
	f.DurationVar(&cfg.Service.JobTimeout, "job-timeout", 5*time.Minute, "time limit of a job for one chunk; jobs for the whole video (sound, subtitles, thumbnails) get this time for each hour of the video")
	return cmd
}

// openAccessLog opens the log of --access-log, or returns nil without one. done closes log and
// file.
func openAccessLog(path string, log *slog.Logger, metrics prometheus.Registerer) (l *origin.AccessLog, done func() error, err error) {
	file := os.Stdout
	switch path {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
	default:
		// Append mode allows rotation by copying and truncating.
		if file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
			return nil, nil, failure.Hint(fmt.Errorf("--access-log: %w", err), "give a writable file, or - for standard output")
		}
	}
	l = accesslog.New[origin.Access](file, log, metrics)
	return l, func() error {
		err := l.Close()
		if file != os.Stdout {
			err = errors.Join(err, file.Close())
		}
		return err
	}, nil
}

// check rejects negative numbers.
func (c *serveConfig) check() error {
	for flag, n := range map[string]int64{
		"slots": int64(c.Service.Slots), "rungs": int64(c.Service.Rungs), "max-bytes": c.Service.MostBytes,
		"max-duration": int64(c.Service.MostDuration), "job-timeout": int64(c.Service.JobTimeout), "drain": int64(c.Drain), "cache-bytes": c.CacheBytes,
	} {
		if n < 0 {
			return fmt.Errorf("--%s is negative", flag)
		}
	}
	return nil
}

// signKey reads the key that signs addresses; nil: addresses are not signed.
func (c *serveConfig) signKey() ([]byte, error) {
	if c.KeyFile == "" {
		return nil, nil
	}
	key, err := os.ReadFile(c.KeyFile)
	if err == nil && len(bytes.TrimSpace(key)) < 32 {
		err = errors.New("the key has fewer than 32 bytes")
	}
	if err != nil {
		return nil, failure.Hint(fmt.Errorf("--sign-key: %w", err), "create a key: head -c 32 /dev/urandom | base64 > FILE")
	}
	return key, nil
}

// tls returns the configuration of the listener, nil without a certificate, and the URL's scheme.
func (c *serveConfig) tls(log *slog.Logger) (*tls.Config, string, error) {
	if c.TLSCert == "" && c.TLSKey == "" {
		return nil, "http", nil
	}
	cert, err := httpserver.LoadCertificate(c.TLSCert, c.TLSKey, log)
	if err != nil {
		return nil, "", failure.Hint(err, "--tls-cert and --tls-key must name a certificate and its key, both in PEM")
	}
	return &tls.Config{GetCertificate: cert.Get}, "https", nil
}

// openLibrary makes the path of the state absolute and opens the assets. Damaged assets are logged
// and left out.
func (c *serveConfig) openLibrary(ctx context.Context, log *slog.Logger) (*asset.Library, error) {
	var err error
	if c.State, err = filepath.Abs(c.State); err != nil {
		return nil, fmt.Errorf("--state: %w", err)
	}
	library, damaged, err := asset.Open(c.State)
	if err != nil {
		next := "give a writable directory"
		if errors.Is(err, asset.ErrInUse) {
			next = "stop the other fre-video serve, or give another directory"
		}
		return nil, failure.Hint(fmt.Errorf("--state: %w", err), next)
	}
	for _, err := range damaged {
		log.ErrorContext(ctx, "leaving out a damaged asset", "error", err)
	}
	return library, nil
}

// serve runs the service until ctx ends.
func serve(ctx context.Context, cfg serveConfig) (err error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return command.Usage(failure.Hint(fmt.Errorf("--log-level: %w", err), "give debug, info, warn or error"))
	}
	if _, err := media.ParseCodec(cfg.Service.Codec); err != nil {
		return command.Usage(fmt.Errorf("--codec: %w", err))
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := cfg.check(); err != nil {
		return command.Usage(err)
	}
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()

	key, err := cfg.signKey()
	if err != nil {
		return err
	}
	secure, scheme, err := cfg.tls(log)
	if err != nil {
		return err
	}
	library, err := cfg.openLibrary(ctx, log)
	if err != nil {
		return err
	}
	undo = append(undo, library.Close)

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return failure.Hint(fmt.Errorf("--listen: %w", err), "give another address, such as 127.0.0.1:8091")
	}
	undo = append(undo, func() error { _ = listener.Close(); return nil }) // the server closes it, too

	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	memory, err := buffer.New(buffer.Config{Bytes: 64 << 20})
	if err != nil {
		return err
	}
	undo = append(undo, memory.Close)
	pressure := origin.WatchMemory(memory.Free, log, metrics)
	undo = append(undo, pressure.Close)
	accessLog, closeLog, err := openAccessLog(cfg.AccessLog, log, metrics)
	if err != nil {
		return err
	}
	undo = append(undo, closeLog)
	front := origin.New(origin.Config{Library: library, Log: log, Prefix: "/assets", Key: key, Metrics: metrics, CacheBytes: cfg.CacheBytes, AccessLog: accessLog, Admission: pressure})
	undo = append(undo, front.Close)

	room := func(bytes int64) error { return linux.HasRoom(cfg.State, bytes) }
	streams, err := live.Open(live.Config{
		Dir: filepath.Join(cfg.State, "live"), Library: library, Log: log, Prefix: livePrefix, Metrics: metrics, Room: room,
		Check: func(name string, path []byte) ([]byte, string) { return front.Check(livePrefix, name, path) },
	})
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	undo = append(undo, streams.Close)
	if err := publishers(ctx, &cfg, streams, log); err != nil {
		return err
	}

	fre := engine.New(cfg.Engine)
	undo = append(undo, func() error { fre.Close(); return nil })
	cfg.Service.Library, cfg.Service.Engine, cfg.Service.Log, cfg.Service.Template = library, fre, log, service.Template
	cfg.Service.Room = room
	cfg.Service.Lock = filepath.Join(cfg.State, "fret.lock")
	videos := service.New(cfg.Service)
	undo = append(undo, func() error { videos.Close(); return nil })
	rest, closing, err := videos.Handler(service.HTTPConfig{
		Uploads: filepath.Join(cfg.State, "uploads"), Import: cfg.Import, Log: log,
		Address: func(a *asset.Asset) string { return front.Path(a.ID, signedFor) },
		Admit:   pressure.Admit, Pressure: pressure.Status,
		Live: streams, LiveAddress: func(name string) string { return front.Address(livePrefix, name, signedFor) },
	})
	if err != nil {
		return failure.Hint(fmt.Errorf("--import or --state: %w", err), "give existing, readable directories")
	}
	undo = append(undo, closing)
	mux := http.NewServeMux()
	mux.Handle("/v1/", rest)
	mux.Handle("/", web.Handler())
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	others := httpserver.NetHTTP(mux)

	server := httpserver.New(httpserver.Config{
		Log: log, TLS: secure, Memory: buffer.Memory{Pool: memory},
		Handler: httpserver.HandlerFunc(func(x *httpserver.Exchange) {
			switch {
			case front.Handles(x.Path):
				front.Serve(x)
			case streams.Handles(x.Path):
				streams.Serve(x)
			default:
				others.Serve(x)
			}
		}),
	})
	log.InfoContext(ctx, "service ready", "url", scheme+"://"+listener.Addr().String(), "state", cfg.State, "engine", cfg.Engine)
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		log.Info("stopping", "drain", cfg.Drain)
		videos.Close() // ends the event streams of assets
		streams.Stop() // ends the requests blocked on live streams
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.Drain)
		defer cancel()
		err := server.Shutdown(drain)
		if err != nil {
			err = server.Close()
		}
		stopped <- err
	}()
	if err := server.Serve(listener); !errors.Is(err, net.ErrClosed) && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return <-stopped
}

// publishers starts the listeners for publishers. They end with streams.
func publishers(ctx context.Context, cfg *serveConfig, streams *live.Server, log *slog.Logger) error {
	if cfg.RTMP != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.RTMP)
		if err != nil {
			return failure.Hint(err, "give another address with --rtmp")
		}
		log.InfoContext(ctx, "listening for publishers", "rtmp", l.Addr().String())
		streams.Go(func() {
			if err := streams.ServeRTMP(l); err != nil {
				log.Error("stopped listening for publishers", "error", err)
			}
		})
	}
	if cfg.SRT != "" {
		at, err := streams.ListenSRT(cfg.SRT)
		if err != nil {
			return failure.Hint(err, "give another address with --srt")
		}
		log.InfoContext(ctx, "listening for publishers", "srt", at.String())
	}
	return nil
}
