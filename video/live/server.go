package live

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/video/asset"
)

// Config configures a Server.
type Config struct {
	Dir     string         // required: STATE/live
	Library *asset.Library // required: the source of loops
	Log     *slog.Logger   // required
	Prefix  string         // required: /live
	Metrics prometheus.Registerer

	// Check splits the signature from a path below a stream's and returns the rest, or the
	// problem. Nil serves every request.
	Check func(name string, path []byte) (rest []byte, problem string)
	Now   func() time.Time // default time.Now

	// Room is called before the server writes bytes of a segment. If Room returns an error, such
	// as ENOSPC, the server writes nothing and sends the publisher away. Nil: the server writes
	// until the disk is full.
	Room func(bytes int64) error
}

// Errors of the API. An unknown stream is fs.ErrNotExist.
var (
	ErrSpec  = errors.New("no such stream can be made")
	ErrTaken = errors.New("there is a stream of that name")
)

// Errors of a publisher.
var (
	errKey      = errors.New("there is no such stream to publish to, or the key is wrong")
	errReplaced = errors.New("another publisher has come, or the stream has ended")
	errGone     = errors.New("the publisher has closed the connection")
	errStopping = errors.New("the service is stopping: publish again in a minute")
)

// record is the content of DIR/NAME/stream.json.
type record struct {
	asset.LiveSpec
	ID      string    `json:"id"`
	Key     string    `json:"key,omitempty"`
	Created time.Time `json:"created"`
}

// channel is a stream with its input.
type channel struct {
	*Stream
	record
	cancel context.CancelFunc // of a loop
	done   chan struct{}      // closed when the loop has ended

	input     chan struct{} // full while an input feeds the stream
	mu        sync.Mutex
	publisher string
	claims    int    // inputs so far
	interrupt func() // ends the latest input, feeding or waiting; nil once this input has ended
	problem   string
	gone      bool
}

// Server holds the live streams. Its methods are safe for concurrent use.
type Server struct {
	cfg     Config
	answers *prometheus.CounterVec
	sent    prometheus.Counter

	group  sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	channels map[string]*channel
	ports    map[string]string // listening ports of publishers, by protocol
	closed   bool
}

// Open opens the streams in a directory and continues them. An unreadable stream stays on disk
// untouched and is logged.
func Open(cfg Config) (*Server, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Room == nil {
		cfg.Room = func(int64) error { return nil }
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	v := &Server{
		cfg: cfg, channels: map[string]*channel{}, ports: map[string]string{},
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_video_live_answers_total", Help: "Answers to viewers of live streams, by what was asked for and the status."}, []string{"kind", "status"}),
		sent:    prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_video_live_sent_bytes_total", Help: "Bytes of bodies that viewers of live streams were answered with."}),
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(v.answers, v.sent)
	}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(cfg.Dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") { // left by an unfinished Create or Remove
			if err := os.RemoveAll(path); err != nil {
				return nil, errors.Join(err, v.Close())
			}
			continue
		}
		if err := v.resume(path); err != nil {
			cfg.Log.Error("a live stream is left out", "stream", e.Name(), "error", err)
		}
	}
	return v, nil
}

// resume opens the stream in a directory.
func (v *Server) resume(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "stream.json"))
	if err != nil {
		return err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	_, err = v.openChannel(r)
	return err
}

// Stop ends all inputs and answers waiting viewers.
func (v *Server) Stop() {
	v.mu.Lock()
	v.closed = true
	all := maps.Clone(v.channels)
	v.mu.Unlock()
	v.cancel()
	for _, c := range all {
		c.stop()
	}
}

// Close stops the server and waits for its goroutines. A later Open continues the streams.
func (v *Server) Close() error {
	v.Stop()
	v.mu.Lock()
	all := v.channels
	v.channels = map[string]*channel{}
	v.mu.Unlock()
	var err error
	for _, c := range all {
		err = errors.Join(err, c.end())
	}
	v.group.Wait()
	return err
}

// openChannel opens a stream from its directory and starts its loop.
func (v *Server) openChannel(r record) (*channel, error) {
	d := &disk{dir: filepath.Join(v.cfg.Dir, r.Name), room: v.cfg.Room}
	now := v.cfg.Now()
	tick := func() time.Duration { return v.cfg.Now().Sub(now) } // by the monotonic clock
	began := r.Created.Add(-time.Second)                         // dash-mpd cannot write times within the first second
	s, err := resume(d, r.Name, r.ID, began, time.Duration(r.Window*float64(time.Second)), now, tick)
	if err != nil {
		return nil, err
	}
	c := &channel{record: r, Stream: s, input: make(chan struct{}, 1)}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil, errors.Join(errClosed, d.close())
	}
	v.channels[r.Name] = c
	if r.Loop != "" {
		ctx, cancel := context.WithCancel(v.ctx)
		c.cancel, c.done = cancel, make(chan struct{})
		v.group.Go(func() {
			defer close(c.done)
			v.loop(ctx, c)
		})
	}
	return c, nil
}

// refused notes why a publisher with a valid key was sent away, unless another publisher is
// active.
func (c *channel) refused(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.publisher == "" {
		c.problem = err.Error()
	}
}

// stop ends a stream's input and waits for the end.
func (c *channel) stop() {
	if c.cancel != nil {
		c.cancel()
		<-c.done
	}
	c.mu.Lock()
	c.gone = true
	interrupt := c.interrupt
	c.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
	c.input <- struct{}{} // the input has ended
	defer func() { <-c.input }()
	c.wake()
}

// end stops a stream and closes its files.
func (c *channel) end() error {
	c.stop()
	return c.disk.close()
}

// claim makes the caller the stream's only input. interrupt must end ctx. claim interrupts the
// earlier input, feeding or waiting, and blocks until the stream is free. The last of several
// claims wins, the earlier claims get errReplaced. The caller passes release the error of its own
// end.
func (c *channel) claim(ctx context.Context, publisher string, interrupt func()) (release func(error), err error) {
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return nil, errClosed
	}
	before := c.interrupt
	c.claims++
	own := c.claims
	c.interrupt = interrupt
	c.mu.Unlock()
	if before != nil {
		before()
	}
	select {
	case c.input <- struct{}{}:
	case <-ctx.Done():
		return nil, errReplaced
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.claims != own {
		<-c.input
		return nil, errReplaced
	}
	c.publisher, c.interrupt, c.problem = publisher, interrupt, ""
	return func(err error) {
		defer func() { <-c.input }()
		c.End()
		c.mu.Lock()
		c.publisher = ""
		if c.claims == own {
			c.interrupt = nil
		}
		if err != nil {
			c.problem = err.Error()
		}
		c.mu.Unlock()
	}, nil
}

// validName reports whether s is a valid name of a stream or track.
func validName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0) {
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// Create makes a stream and starts it. Errors wrap ErrSpec and ErrTaken.
func (v *Server) Create(spec asset.LiveSpec) (asset.Live, error) {
	if spec.Window == 0 {
		spec.Window = 300
	}
	switch {
	case !validName(spec.Name):
		return asset.Live{}, fmt.Errorf("%w: the name %q is not of lower-case letters, digits and hyphens, 63 at most", ErrSpec, spec.Name)
	case !(spec.Window >= leastWindow.Seconds() && spec.Window <= 12*3600):
		return asset.Live{}, fmt.Errorf("%w: a window of %g seconds; 30 to 43200 can be", ErrSpec, spec.Window)
	}
	if err := v.checkLoop(spec.Loop); err != nil {
		return asset.Live{}, err
	}
	r := record{LiveSpec: spec, ID: strings.ToLower(rand.Text()[:8]), Created: v.cfg.Now().UTC().Truncate(time.Millisecond)}
	if spec.Loop == "" {
		r.Key = strings.ToLower(rand.Text())
	}
	if err := v.store(r); err != nil {
		return asset.Live{}, err
	}
	c, err := v.openChannel(r)
	if err != nil {
		return asset.Live{}, err
	}
	return v.view(c), nil
}

// checkLoop refuses an asset that cannot be played.
func (v *Server) checkLoop(id string) error {
	if id == "" {
		return nil
	}
	a := v.cfg.Library.Get(id)
	if a == nil || a.State != asset.Ready {
		return fmt.Errorf("%w: there is no asset %q that is ready", ErrSpec, id)
	}
	if a.Protection != asset.Clear {
		return fmt.Errorf("%w: asset %s is protected, and live streams are not", ErrSpec, id)
	}
	return nil
}

// store writes a stream's directory, which appears whole. The error wraps ErrTaken if the name has
// a stream.
func (v *Server) store(r record) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	aside := filepath.Join(v.cfg.Dir, "."+r.ID)
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	path := filepath.Join(aside, "stream.json")
	if err = os.WriteFile(filepath.Join(aside, "log"), nil, 0o600); err == nil {
		err = os.WriteFile(path+".new", b, 0o600)
	}
	if err == nil {
		err = asset.Commit(path+".new", path)
	}
	if err == nil {
		v.mu.Lock()
		if v.channels[r.Name] != nil {
			err = fmt.Errorf("%w: %s", ErrTaken, r.Name)
		} else if err = os.Rename(aside, filepath.Join(v.cfg.Dir, r.Name)); errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %s", ErrTaken, r.Name)
		}
		v.mu.Unlock()
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(aside))
	}
	return nil
}

// Remove ends a stream and deletes its directory. An unknown stream is fs.ErrNotExist.
func (v *Server) Remove(name string) error {
	v.mu.Lock()
	c := v.channels[name]
	delete(v.channels, name)
	v.mu.Unlock()
	if c == nil {
		return fmt.Errorf("live stream %q: %w", name, fs.ErrNotExist)
	}
	err := c.end()
	aside := filepath.Join(v.cfg.Dir, "."+c.ID)
	if err := os.Rename(filepath.Join(v.cfg.Dir, name), aside); err != nil {
		return err
	}
	return errors.Join(err, os.RemoveAll(aside))
}

// Get returns a stream. An unknown stream is fs.ErrNotExist.
func (v *Server) Get(name string) (asset.Live, error) {
	c := v.channel(name)
	if c == nil {
		return asset.Live{}, fmt.Errorf("live stream %q: %w", name, fs.ErrNotExist)
	}
	return v.view(c), nil
}

// List returns all streams, sorted by name.
func (v *Server) List() []asset.Live {
	v.mu.Lock()
	all := make([]*channel, 0, len(v.channels))
	for _, c := range v.channels {
		all = append(all, c)
	}
	v.mu.Unlock()
	views := make([]asset.Live, 0, len(all))
	for _, c := range all {
		views = append(views, v.view(c))
	}
	slices.SortFunc(views, func(a, b asset.Live) int { return cmp.Compare(a.Name, b.Name) })
	return views
}

func (v *Server) channel(name string) *channel {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.channels[name]
}

func (v *Server) stream(name string) *Stream {
	if c := v.channel(name); c != nil {
		return c.Stream
	}
	return nil
}

// view describes a channel. Package service adds signed playlist addresses and the publishing
// host.
func (v *Server) view(c *channel) asset.Live {
	w := asset.Live{LiveSpec: c.LiveSpec, Key: c.Key, Created: c.Created, State: asset.Waiting}
	v.mu.Lock()
	rtmp, srt := v.ports["rtmp"], v.ports["srt"]
	v.mu.Unlock()
	if c.Key != "" && rtmp != "" {
		w.RTMP = ":" + rtmp + "/live/" + c.Name + "?key=" + c.Key
	}
	if c.Key != "" && srt != "" {
		w.SRT = ":" + srt + "?streamid=" + c.Name + ":" + c.Key
	}
	c.mu.Lock()
	w.Error, w.Publisher = c.problem, c.publisher
	c.mu.Unlock()
	c.Stream.mu.Lock()
	defer c.Stream.mu.Unlock()
	if c.flowing {
		w.State = asset.OnAir
	}
	if c.current != nil {
		for _, t := range c.current.Tracks {
			w.Tracks = append(w.Tracks, t.LiveTrack)
		}
	}
	return w
}

// listening notes the port on which the server accepts publishers.
func (v *Server) listening(protocol string, at net.Addr) {
	_, port, err := net.SplitHostPort(at.String())
	if err != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ports[protocol] = port
}

// Go runs do in a goroutine and reports true, or reports false if the server is closed. Close
// waits for the goroutine.
func (v *Server) Go(do func()) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	v.group.Go(do)
	return true
}
