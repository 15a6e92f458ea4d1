// Package origin serves finished assets: playlists and manifests from memory, segments from the
// page cache by sendfile.
//
//	PREFIX/ID/hls/master.m3u8 · hls/RENDITION.m3u8 · hls/RENDITION-keys.m3u8
//	PREFIX/ID/dash/manifest.mpd
//	PREFIX/ID/cmaf/RENDITION/init.mp4 · cmaf/RENDITION/NUMBER.m4s · cmaf/RENDITION.mp4
//	PREFIX/ID/ts/master.m3u8 · ts/RENDITION.m3u8 · ts/RENDITION/NUMBER.ts
//	PREFIX/ID/key · license
//	PREFIX/ID/text/RENDITION.vtt · thumbnails.vtt · thumbs/NUMBER.jpg
//
// With a signing key every path is below PREFIX/ID/@EXPIRES-SIGNATURE/ instead: relative
// addresses in playlists keep the signature.
package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/video/asset"
)

// Config configures an Origin.
type Config struct {
	Library *asset.Library // required
	Log     *slog.Logger   // required
	Prefix  string         // required: /assets
	Key     []byte         // signs addresses; nil: no signature is needed
	Metrics prometheus.Registerer
	Now     func() time.Time // default time.Now

	AccessLog *AccessLog // nil: no log; the caller closes the log
	Admission *Admission // for requests in need of memory or work; nil: admits all; the caller closes it

	// CacheBytes is the memory for segments made on demand: in MPEG-TS, or encrypted. Segments
	// being sent count. Default 256 MiB.
	CacheBytes int64
}

// packings lists the content codings of texts.
var packings = []string{"gzip"}

// mostShelves is the most assets with playlists in memory and open files.
const mostShelves = 256

// Origin answers requests for assets. Its methods are safe for concurrent use.
type Origin struct {
	cfg    Config
	signer signer
	cache  *cache
	cancel context.CancelFunc
	done   chan struct{}

	answers *prometheus.CounterVec
	whole   map[string]prometheus.Counter // answers of status 200, by kind
	sent    prometheus.Counter

	mu      sync.Mutex
	shelves map[string]*shelf
	uses    uint64
}

// New returns an origin. The caller closes it.
func New(cfg Config) *Origin {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = 256 << 20
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := &Origin{
		cfg: cfg, signer: signer{key: cfg.Key, now: cfg.Now}, cache: newCache(cfg.CacheBytes, runtime.GOMAXPROCS(0), cfg.Admission.Admit), cancel: cancel, done: make(chan struct{}), shelves: map[string]*shelf{},
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "fre_video_answers_total", Help: "Answers of the origin, by what was asked for and the status."}, []string{"kind", "status"}),
		sent:    prometheus.NewCounter(prometheus.CounterOpts{Name: "fre_video_sent_bytes_total", Help: "Bytes of bodies that the origin has answered with."}),
	}
	if cfg.Metrics != nil {
		cfg.Metrics.MustRegister(o.answers, o.sent, uses{o})
	}
	o.whole = map[string]prometheus.Counter{}
	for _, kind := range []string{"file", "made", "text"} {
		o.whole[kind] = o.answers.WithLabelValues(kind, "200")
	}
	go o.follow(ctx)
	return o
}

// Close closes all files. The origin must not be used afterwards.
func (o *Origin) Close() error {
	o.cancel()
	<-o.done
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.shelves {
		s.close()
		delete(o.shelves, id)
	}
	o.cache.drop(nil)
	return nil
}

// follow closes the files of assets that were removed or made again, to free their space on the
// disk.
func (o *Origin) follow(ctx context.Context) {
	defer close(o.done)
	for {
		changed := o.cfg.Library.Changed()
		var gone []*shelf
		o.mu.Lock()
		for id, s := range o.shelves {
			if a := o.cfg.Library.Get(id); a == nil || a.Made != s.asset.Made {
				gone = append(gone, s)
				delete(o.shelves, id)
				o.cache.drop(func(tag string) bool { return strings.HasPrefix(tag, `"`+s.asset.Made+"-") })
			}
		}
		o.mu.Unlock()
		for _, s := range gone { // closing the last descriptor of a removed file takes time: not under mu
			s.close()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Path returns the address of an asset. With a signing key the address is valid for a limited
// time.
func (o *Origin) Path(id string, valid time.Duration) string {
	return o.signer.address(o.cfg.Prefix+"/"+id, id, valid)
}

// Handles reports whether path is below the origin's prefix.
func (o *Origin) Handles(path []byte) bool {
	return len(path) > len(o.cfg.Prefix) && string(path[:len(o.cfg.Prefix)]) == o.cfg.Prefix && path[len(o.cfg.Prefix)] == '/'
}

// Serve answers a request.
func (o *Origin) Serve(on *httpserver.Exchange) {
	x := &exchange{Exchange: on}
	var begun time.Time
	if o.cfg.AccessLog != nil {
		begun = time.Now()
	}
	defer o.note(x, begun)
	x.Set("Access-Control-Allow-Origin", "*")
	switch string(x.Method) {
	case http.MethodGet, http.MethodHead, http.MethodPost:
		if err := o.answer(x); err != nil {
			o.fail(x, err)
		}
	case http.MethodOptions:
		x.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
		x.Set("Access-Control-Allow-Headers", asset.PlayerFields)
		x.Set("Access-Control-Max-Age", "86400")
		x.Set("Allow", "GET, HEAD, OPTIONS")
		o.count("options", http.StatusNoContent)
		_ = x.Send(http.StatusNoContent, nil) // fails with the connection, as every answer here
	default:
		o.refuseMethod(x)
	}
}

// answer answers a request for an asset. If answer returns an error, it has not answered yet.
func (o *Origin) answer(x *exchange) error {
	var path []byte
	if o.Handles(x.Path) {
		x.id, path, _ = bytes.Cut(x.Path[len(o.cfg.Prefix)+1:], []byte{'/'})
	}
	if o.cfg.Key == nil {
		x.path = path
	}
	s, err := o.shelf(x.id)
	if err != nil {
		return err
	}
	if s == nil {
		o.refuse(x, http.StatusNotFound, api.CodeNotFound, "there is no asset here that is ready")
		return nil
	}
	defer s.release()
	x.shelf = s
	path, problem := o.signer.verify(s.asset.ID, path)
	if problem != "" {
		o.refuse(x, http.StatusForbidden, api.CodeForbidden, problem)
		return nil
	}
	x.path = path
	if string(x.Method) == http.MethodPost {
		o.license(x, s.asset)
		return nil
	}
	it, ok, err := s.find(path)
	if err != nil {
		return err
	}
	if !ok {
		o.refuse(x, http.StatusNotFound, api.CodeNotFound, "the asset has nothing of that name")
		return nil
	}
	return o.send(x, &it)
}

// fail answers with an error of answer.
func (o *Origin) fail(x *exchange, err error) {
	var refused *api.Error
	if errors.As(err, &refused) {
		x.Set("Retry-After", "1")
		o.refuse(x, refused.Status, refused.Code, refused.Message)
		return
	}
	o.cfg.Log.Error("an asset cannot be served", "asset", string(x.id), "path", string(x.path), "error", err)
	o.refuse(x, http.StatusInternalServerError, api.CodeInternal, "the asset cannot be read")
}

// license answers a POST, which can be a request for a license only.
func (o *Origin) license(x *exchange, a *asset.Asset) {
	if string(x.path) != "license" || a.Protection != asset.CBCS {
		o.refuseMethod(x)
		return
	}
	request, err := io.ReadAll(io.LimitReader(x.Body, mostLicense+1))
	if err != nil {
		x.Abort()
		return
	}
	b, ok := licenseOf(a, request)
	if !ok {
		o.refuse(x, http.StatusBadRequest, api.CodeBadRequest, `the body is no request for a license: {"kids": [...], "type": "temporary"}`)
		return
	}
	x.Set("Content-Type", "application/json")
	x.Set("Cache-Control", never)
	o.count("license", http.StatusOK)
	_ = x.Send(http.StatusOK, b)
}

// shelf returns the shelf of a ready asset, or nil. The caller releases the shelf. The error is
// an *api.Error if the origin is too busy to make a shelf.
func (o *Origin) shelf(id []byte) (*shelf, error) {
	s, own := o.placeOf(id)
	switch {
	case s == nil:
		return nil, nil
	case own:
		s.err = o.fill(s)
		o.settle(s)
		close(s.ready)
	default:
		<-s.ready
	}
	if s.err != nil {
		s.release()
		return nil, s.err
	}
	return s, nil
}

// placeOf returns the shelf of a ready asset, or nil. If own is true the caller has to fill the
// shelf, and other requests wait for it.
func (o *Origin) placeOf(id []byte) (s *shelf, own bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uses++
	if s := o.shelves[string(id)]; s != nil && s.acquire() {
		s.used = o.uses
		return s, false
	}
	a := o.cfg.Library.Get(string(id))
	if a == nil || a.State != asset.Ready {
		return nil, false
	}
	name := a.ID
	s = newShelf(a, func(elem ...string) string { return o.cfg.Library.Path(name, elem...) })
	s.used = o.uses
	s.acquire()
	o.shelves[name] = s
	return s, true
}

// fill makes a shelf's playlists in one of the makers' slots.
func (o *Origin) fill(s *shelf) (err error) {
	if err := o.cfg.Admission.Admit(); err != nil {
		return err
	}
	if err := o.cache.makers.enter(); err != nil {
		return err
	}
	began := time.Now()
	defer func() {
		if p := recover(); p != nil { // other goroutines wait for the shelf and the slot
			err = fmt.Errorf("playlists cannot be made: %v\n%s", p, debug.Stack())
		}
		o.cache.makers.leave(time.Since(began))
	}()
	return s.fill()
}

// settle keeps a filled shelf. If more than mostShelves shelves are open, settle drops the least
// recently used. A shelf with an error is dropped.
func (o *Origin) settle(s *shelf) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.err != nil {
		o.forgetLocked(s)
		return
	}
	for len(o.shelves) > mostShelves {
		oldest := s
		for _, other := range o.shelves {
			if other.used < oldest.used {
				oldest = other
			}
		}
		o.forgetLocked(oldest)
	}
}

// forgetLocked drops a shelf. Exchanges in progress keep their files.
func (o *Origin) forgetLocked(s *shelf) {
	if o.shelves[s.asset.ID] == s {
		delete(o.shelves, s.asset.ID)
	}
	s.close()
}

// send answers with an item, by the request's conditions and ranges. If send returns an error, it
// has not answered yet.
func (o *Origin) send(x *exchange, it *item) error {
	body, tag, packed := coded(x, it)
	of := httpserver.Validators{Tag: tag}
	status := of.Precondition(&x.Head)
	if status == http.StatusPreconditionFailed {
		o.refuse(x, status, "precondition_failed", "what the request is conditional on does not hold")
		return nil
	}
	if it.by != nil && status != http.StatusNotModified {
		m, err := o.cache.get(tag, it.by)
		if err != nil {
			return err
		}
		defer o.cache.release(m)
		it.file, it.size = m.file, m.size
	}
	x.Set("Access-Control-Expose-Headers", "Content-Length, Content-Range, Date, Etag")
	offset, size := int64(0), it.size
	if status == http.StatusOK {
		var ok bool
		if status, offset, size, ok = o.ranged(x, of, it.size); !ok {
			return nil
		}
	}
	x.Set("Etag", tag)
	x.Set("Cache-Control", it.keep)
	if status == http.StatusNotModified {
		o.count("unchanged", status)
		_ = x.Send(status, nil)
		return nil
	}
	if packed {
		x.Set("Content-Encoding", "gzip")
	}
	x.Set("Content-Type", it.kind)
	x.Set("Accept-Ranges", "bytes")
	if it.file != nil {
		o.count(it.counted(), status)
		_ = x.SendFile(status, it.file, it.offset+offset, size)
		return nil
	}
	o.count("text", status)
	_ = x.Send(status, body[offset:offset+size])
	return nil
}

// coded returns the body of an item and its tag, packed if the client accepts it.
func coded(x *exchange, it *item) (body []byte, tag string, packed bool) {
	if it.packed == nil {
		return it.plain, it.tag, false
	}
	x.Set("Vary", "Accept-Encoding")
	if httpserver.AcceptedCoding(x.Field("Accept-Encoding"), packings) != 0 {
		return it.plain, it.tag, false
	}
	it.size = int64(len(it.packed))
	return it.packed, it.tag[:len(it.tag)-1] + `-gz"`, true
}

// ranged returns the requested part of a body of all bytes, with the answer's status. If no part
// of the body was requested, ranged refuses the request and ok is false.
func (o *Origin) ranged(x *exchange, of httpserver.Validators, all int64) (status int, offset, size int64, ok bool) {
	if string(x.Method) != http.MethodGet {
		return http.StatusOK, 0, all, true
	}
	parts, ok := of.Ranges(&x.Head, all)
	if !ok {
		x.Set("Content-Range", "bytes */"+strconv.FormatInt(all, 10))
		x.Set("Cache-Control", never)
		o.count("range", http.StatusRequestedRangeNotSatisfiable)
		_ = x.Send(http.StatusRequestedRangeNotSatisfiable, nil)
		return 0, 0, 0, false
	}
	if len(parts) != 1 { // several ranges get the whole body, as RFC 9110 allows
		return http.StatusOK, 0, all, true
	}
	x.Set("Content-Range", parts[0].ContentRange(all))
	return http.StatusPartialContent, parts[0].First, parts[0].Length, true
}

// counted returns the metric's kind of an item with a file.
func (it *item) counted() string {
	if it.by != nil {
		return "made"
	}
	return "file"
}

func (o *Origin) refuseMethod(x *exchange) {
	x.Set("Allow", "GET, HEAD, OPTIONS")
	o.refuse(x, http.StatusMethodNotAllowed, api.CodeMethod, "GET, HEAD or OPTIONS")
}

func (o *Origin) count(kind string, status int) {
	if c := o.whole[kind]; c != nil && status == http.StatusOK {
		c.Inc()
		return
	}
	o.answers.WithLabelValues(kind, strconv.Itoa(status)).Inc()
}

// refuse answers with an error as JSON, in the shape of all API errors.
func (o *Origin) refuse(x *exchange, status int, code api.Code, message string) {
	o.count("refused", status)
	b, _ := json.Marshal(api.ErrorBody{Error: &api.Error{Code: code, Message: message}}) // strings always encode
	x.Set("Content-Type", "application/json")
	x.Set("Cache-Control", "no-store")
	_ = x.Send(status, append(b, '\n'))
}

// note counts an answer and writes its entry in the access log. begun is the zero time without a
// log.
func (o *Origin) note(x *exchange, begun time.Time) {
	o.sent.Add(float64(x.bytes))
	if x.shelf != nil {
		x.shelf.answers.Add(1)
		x.shelf.bytes.Add(x.bytes)
	}
	if o.cfg.AccessLog == nil {
		return
	}
	client, _, _ := net.SplitHostPort(x.RemoteAddr()) // "" for a Unix socket
	a := Access{
		Time: begun, Client: client, Method: string(x.Method), Path: string(x.path), Range: x.Field("Range"),
		Status: x.status, Bytes: x.bytes, Micros: time.Since(begun).Microseconds(), Session: session(&x.Head),
	}
	if x.shelf != nil {
		a.Asset = x.shelf.asset.ID
	} else if len(x.id) <= 64 {
		a.Asset = string(x.id)
	}
	o.cfg.AccessLog.Add(a)
}

var (
	assetAnswers = prometheus.NewDesc("fre_video_asset_answers_total", "Answers with an asset since its playlists are open; gone once they are closed.", []string{"asset"}, nil)
	assetBytes   = prometheus.NewDesc("fre_video_asset_sent_bytes_total", "Bytes of bodies of these answers.", []string{"asset"}, nil)
)

// uses collects the metrics of the open shelves, at most mostShelves.
type uses struct{ o *Origin }

// Describe implements prometheus.Collector.
func (uses) Describe(ch chan<- *prometheus.Desc) {
	ch <- assetAnswers
	ch <- assetBytes
}

// Collect implements prometheus.Collector.
func (u uses) Collect(ch chan<- prometheus.Metric) {
	u.o.mu.Lock()
	defer u.o.mu.Unlock()
	for id, s := range u.o.shelves {
		ch <- prometheus.MustNewConstMetric(assetAnswers, prometheus.CounterValue, float64(s.answers.Load()), id)
		ch <- prometheus.MustNewConstMetric(assetBytes, prometheus.CounterValue, float64(s.bytes.Load()), id)
	}
}

// Address returns the address prefix/name of an object outside the assets, such as a live stream.
// With a signing key the address is signed and valid for a duration.
func (o *Origin) Address(prefix, name string, valid time.Duration) string {
	return o.signer.address(prefix+"/"+name, prefix+"/"+name, valid)
}

// Check checks and removes the signature in a path below an Address. Without a signing key Check
// returns path unchanged. A non-empty problem refuses the request.
func (o *Origin) Check(prefix, name string, path []byte) (rest []byte, problem string) {
	return o.signer.verify(prefix+"/"+name, path)
}
