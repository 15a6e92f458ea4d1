package live

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/httpserver"
	"github.com/fre-engine/fre/video/asset"
)

// Media types and values of Cache-Control.
const (
	typeHLS  = "application/vnd.apple.mpegurl"
	typeDASH = "application/dash+xml"

	keepMedia  = "public, max-age=3600, immutable" // an address of media never gets other content
	keepAsked  = "public, max-age=10"              // the answer of a blocking request does not change
	keepMoment = "public, max-age=1"
)

// playlist returns the current playlist of a name, or nil before the stream has begun. The name
// is master, manifest or a track's name. skip asks for a delta update.
func (s *Stream) playlist(name string, skip bool) (*text, error) {
	key := name
	if skip {
		key += "?"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.texts[key]; t != nil && t.version == s.version {
		return t, nil
	}
	var plain []byte
	var err error
	switch name {
	case "master":
		plain = s.masterLocked()
	case "manifest":
		plain, err = s.manifestLocked()
	default:
		plain = s.mediaLocked(name, skip)
	}
	if plain == nil || err != nil {
		return nil, err
	}
	t := &text{version: s.version, plain: plain}
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level is valid
	_, _ = z.Write(plain)                                // writes to memory
	_ = z.Close()
	t.packed = packed.Bytes()
	s.texts[key] = t
	return t, nil
}

// answer is the response for a path of a stream.
type answer struct {
	kind, keep string
	text       *text
	body       []byte
	file       *os.File // closed by the sender; the body is size bytes from offset
	offset     int64
	size       int64
	status     int // of an error
	problem    string
}

func refusal(status int, problem string) answer { return answer{status: status, problem: problem} }

var nothing = refusal(http.StatusNotFound, "the stream has nothing of that name")

// find returns the answer for a path below hls/, dash/ and media/, and for time. find may block
// until ctx ends.
func (s *Stream) find(ctx func() context.Context, path, query string) (answer, error) {
	folder, rest, _ := strings.Cut(path, "/")
	switch {
	case path == "time":
		return answer{kind: "text/plain; charset=utf-8", keep: "no-store", body: []byte(stamp(s.began.Add(s.clock())))}, nil
	case path == "dash/manifest.mpd":
		return s.playlistAnswer("manifest", typeDASH, keepMoment, false)
	case path == "hls/master.m3u8":
		return s.playlistAnswer("master", typeHLS, keepMoment, false)
	case folder == "hls":
		name, ok := strings.CutSuffix(rest, ".m3u8")
		if !ok || name == "master" || name == "manifest" {
			return nothing, nil
		}
		return s.mediaPlaylist(ctx, name, query)
	case folder == "media":
		return s.mediaFile(ctx, rest)
	}
	return nothing, nil
}

func (s *Stream) playlistAnswer(name, kind, keep string, skip bool) (answer, error) {
	t, err := s.playlist(name, skip)
	if err != nil || t == nil {
		return refusal(http.StatusNotFound, "the stream has not begun"), err
	}
	return answer{kind: kind, keep: keep, text: t}, nil
}

// mediaPlaylist returns a track's playlist once the playlist has the requested part (RFC 8216bis
// section 6.2.5).
func (s *Stream) mediaPlaylist(ctx func() context.Context, name, query string) (answer, error) {
	keep := keepMoment
	skip, number, part, err := parseReload(query)
	if err != nil {
		return refusal(http.StatusBadRequest, err.Error()), nil
	}
	if number >= 0 {
		keep = keepAsked
		far := false
		reached, flowing, err := s.wait(ctx, func() bool {
			r := s.rows[name]
			if r == nil {
				return true
			}
			far = r.far(number, part)
			return far || r.reached(number, part)
		})
		switch {
		case err != nil:
			return refusal(http.StatusServiceUnavailable, err.Error()), nil
		case far:
			return refusal(http.StatusBadRequest, "_HLS_msn or _HLS_part is too far ahead"), nil
		case !reached && flowing:
			return refusal(http.StatusServiceUnavailable, "the stream does not go on"), nil
		case !reached:
			keep = "no-store"
		}
	}
	return s.playlistAnswer(name, typeHLS, keep, skip)
}

// mostWaiting is the limit of blocked requests of a stream. Each costs a goroutine.
const mostWaiting = 20_000

var errWaiting = errors.New("too many requests wait for the stream")

// wait blocks until condition holds. The limit is three target durations, or one without an
// input. wait calls condition with mu held.
func (s *Stream) wait(ctx func() context.Context, condition func() bool) (reached, flowing bool, err error) {
	var timer *time.Timer
	began := time.Now()
	for {
		s.mu.Lock()
		flowing, reached = s.flowing, condition()
		left := patience(flowing) - time.Since(began)
		changed, over := s.changed, reached || s.closed || left <= 0
		err := s.countLocked(timer != nil, !over)
		s.mu.Unlock()
		if err != nil {
			return false, flowing, err
		}
		if over {
			return reached, flowing, nil
		}
		if timer == nil {
			timer = time.NewTimer(left)
			defer timer.Stop()
		} else {
			timer.Reset(left)
		}
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx().Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.waiting--
			return false, flowing, nil
		}
	}
}

// patience returns the longest wait.
func patience(flowing bool) time.Duration {
	if flowing {
		return 3 * segmentMost
	}
	return segmentMost
}

// countLocked counts a request that begins to wait or ends its wait. It returns errWaiting if too
// many wait.
func (s *Stream) countLocked(before, now bool) error {
	switch {
	case before && !now:
		s.waiting--
	case !before && now:
		if s.waiting >= mostWaiting {
			return errWaiting
		}
		s.waiting++
	}
	return nil
}

// parseReload reads the directives of a request for a playlist. number and part are -1 if absent.
func parseReload(query string) (skip bool, number int64, part int, err error) {
	number, part = -1, -1
	if query == "" {
		return false, number, part, nil
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return false, 0, 0, errors.New("the query cannot be read")
	}
	skip = slices.Contains([]string{"YES", "v2"}, q.Get("_HLS_skip"))
	if v := q.Get("_HLS_msn"); v != "" {
		if number, err = strconv.ParseInt(v, 10, 64); err != nil || number < 0 {
			return false, 0, 0, errors.New("_HLS_msn is no number")
		}
	}
	if v := q.Get("_HLS_part"); v != "" {
		if part, err = strconv.Atoi(v); err != nil || part < 0 || number < 0 {
			return false, 0, 0, errors.New("_HLS_part is no number, or _HLS_msn is missing")
		}
	}
	return skip, number, part, nil
}

// mediaFile returns an initialisation segment ID/TRACK/init-EPOCH.mp4, a segment NUMBER.m4s or a part
// NUMBER.PART.m4s. A request for the next part blocks.
func (s *Stream) mediaFile(ctx func() context.Context, path string) (answer, error) {
	id, rest, _ := strings.Cut(path, "/")
	track, name, _ := strings.Cut(rest, "/")
	if id != s.id {
		return nothing, nil
	}
	if v, ok := strings.CutPrefix(name, "init-"); ok {
		return s.init(track, strings.TrimSuffix(v, ".mp4")), nil
	}
	number, part, ok := parseName(name)
	if !ok {
		return nothing, nil
	}
	var a answer
	if part >= 0 {
		if _, _, err := s.wait(ctx, func() bool {
			var known bool
			a, known = s.partLocked(track, number, part)
			return known
		}); err != nil {
			return refusal(http.StatusServiceUnavailable, err.Error()), nil
		}
	} else {
		s.mu.Lock()
		a = s.segmentLocked(track, number)
		s.mu.Unlock()
	}
	if a.kind == "" {
		return nothing, nil
	}
	if a.body == nil {
		f, err := os.Open(s.disk.path(track, number))
		if errors.Is(err, fs.ErrNotExist) {
			return nothing, nil // the segment has left the window
		}
		if err != nil {
			return a, err
		}
		a.file = f
	}
	return a, nil
}

// parseName reads NUMBER.m4s, with part -1, and NUMBER.PART.m4s.
func parseName(name string) (number int64, part int, ok bool) {
	base, ok := strings.CutSuffix(name, ".m4s")
	digits, digit, isPart := strings.Cut(base, ".")
	number, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ok || number < 0 {
		return 0, 0, false
	}
	if !isPart {
		return number, -1, true
	}
	part, err = strconv.Atoi(digit)
	return number, part, err == nil && part >= 0
}

// segmentLocked returns a finished segment without its bytes. The kind is empty if the stream has no
// such segment.
func (s *Stream) segmentLocked(track string, number int64) answer {
	r := s.rows[track]
	if r == nil {
		return answer{}
	}
	of := r.segment(number)
	if of == nil {
		return answer{}
	}
	return answer{kind: of.track.Kind + "/mp4", keep: keepMedia, size: of.size}
}

// partLocked returns a part. known is false if the part is the next one of the track. The kind is
// empty if the stream has no such part.
func (s *Stream) partLocked(track string, number int64, part int) (a answer, known bool) {
	r := s.rows[track]
	if r == nil {
		return answer{}, true
	}
	if of := r.segment(number); of != nil && part < len(of.parts) {
		return of.part(part), true
	}
	if r.open == nil { // the next part belongs to the next segment
		return answer{}, number != r.next || part != 0
	}
	if number == r.open.number && part < len(r.open.parts) {
		return r.open.part(part), true
	}
	return answer{}, number != r.open.number || part != len(r.open.parts)
}

// part returns the answer with part n of the segment.
func (s *segment) part(n int) answer {
	p := &s.parts[n]
	return answer{kind: s.track.Kind + "/mp4", keep: keepMedia, body: p.body, offset: p.offset, size: p.size}
}

// init returns a track's initialisation segment in an epoch.
func (s *Stream) init(track, epoch string) answer {
	number, err := strconv.Atoi(epoch)
	if err != nil {
		return nothing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var t *Track
	if s.current != nil && s.current.Number == number {
		t = s.current.track(track)
	} else if r := s.rows[track]; r != nil {
		i, ok := slices.BinarySearchFunc(r.segments, number, func(of *segment, n int) int { return of.epoch.Number - n })
		if ok {
			t = r.segments[i].track
		}
	}
	if t == nil {
		return nothing
	}
	return answer{kind: t.Kind + "/mp4", keep: keepMedia, body: t.Init}
}

// Handles reports whether path is below the server's prefix.
func (v *Server) Handles(path []byte) bool {
	return len(path) > len(v.cfg.Prefix) && string(path[:len(v.cfg.Prefix)]) == v.cfg.Prefix && path[len(v.cfg.Prefix)] == '/'
}

// Serve answers a viewer's request. Serve may block until the requested part exists.
func (v *Server) Serve(x *httpserver.Exchange) {
	x.Set("Access-Control-Allow-Origin", "*")
	switch string(x.Method) {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		x.Set("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS")
		x.Set("Access-Control-Allow-Headers", asset.PlayerFields)
		x.Set("Access-Control-Max-Age", "86400")
		x.Set("Allow", "GET, HEAD, OPTIONS")
		_ = x.Send(http.StatusNoContent, nil) // fails with the connection, as every answer here
		return
	default:
		x.Set("Allow", "GET, HEAD, OPTIONS")
		v.refuse(x, http.StatusMethodNotAllowed, "GET, HEAD or OPTIONS")
		return
	}
	var name, path []byte
	if v.Handles(x.Path) {
		name, path, _ = bytes.Cut(x.Path[len(v.cfg.Prefix)+1:], []byte{'/'})
	}
	s := v.stream(string(name))
	if s == nil {
		v.refuse(x, http.StatusNotFound, "there is no stream of that name")
		return
	}
	if v.cfg.Check != nil {
		var problem string
		if path, problem = v.cfg.Check(s.name, path); problem != "" {
			v.refuse(x, http.StatusForbidden, problem)
			return
		}
	}
	a, err := s.find(x.Context, string(path), string(x.Query))
	if err != nil {
		v.cfg.Log.Error("a live stream cannot be served", "stream", s.name, "path", string(path), "error", err)
		a = refusal(http.StatusInternalServerError, "the stream cannot be read")
	}
	if a.problem != "" {
		v.refuse(x, a.status, a.problem)
		return
	}
	v.send(x, &a)
}

// send sends an answer, or the requested range of the answer.
func (v *Server) send(x *httpserver.Exchange, a *answer) {
	x.Set("Cache-Control", a.keep)
	x.Set("Content-Type", a.kind)
	x.Set("Access-Control-Expose-Headers", "Content-Length, Content-Range, Date")
	if a.text != nil {
		a.body = a.text.plain
		x.Set("Vary", "Accept-Encoding")
		if httpserver.AcceptedCoding(x.Field("Accept-Encoding"), []string{"gzip"}) == 0 {
			a.body = a.text.packed
			x.Set("Content-Encoding", "gzip")
		}
		v.count("playlist", http.StatusOK, len(a.body))
		_ = x.Send(http.StatusOK, a.body)
		return
	}
	if a.file != nil {
		defer a.file.Close()
	} else {
		a.size = int64(len(a.body))
	}
	status, offset, size := http.StatusOK, int64(0), a.size
	if string(x.Method) == http.MethodGet && a.keep == keepMedia {
		x.Set("Accept-Ranges", "bytes")
		of := httpserver.Validators{}
		parts, ok := of.Ranges(&x.Head, a.size)
		if !ok {
			x.Set("Content-Range", "bytes */"+strconv.FormatInt(a.size, 10))
			v.count("media", http.StatusRequestedRangeNotSatisfiable, 0)
			_ = x.Send(http.StatusRequestedRangeNotSatisfiable, nil)
			return
		}
		if len(parts) == 1 { // several ranges get the whole body, as RFC 9110 allows
			status, offset, size = http.StatusPartialContent, parts[0].First, parts[0].Length
			x.Set("Content-Range", parts[0].ContentRange(a.size))
		}
	}
	v.count("media", status, int(size))
	if a.file != nil {
		_ = x.SendFile(status, a.file, a.offset+offset, size)
		return
	}
	_ = x.Send(status, a.body[offset:offset+size])
}

func (v *Server) count(kind string, status, bytes int) {
	v.answers.WithLabelValues(kind, strconv.Itoa(status)).Inc()
	v.sent.Add(float64(bytes))
}

// refuse answers with an error as JSON, in the shape of all API errors.
func (v *Server) refuse(x *httpserver.Exchange, status int, message string) {
	v.count("refused", status, 0)
	code := map[int]api.Code{http.StatusNotFound: api.CodeNotFound, http.StatusForbidden: api.CodeForbidden, http.StatusMethodNotAllowed: api.CodeMethod, http.StatusBadRequest: api.CodeBadRequest, http.StatusServiceUnavailable: api.CodeOverloaded}[status]
	if code == "" {
		code = api.CodeInternal
	}
	b, _ := json.Marshal(api.ErrorBody{Error: &api.Error{Code: code, Message: message}}) // strings always encode
	x.Set("Content-Type", "application/json")
	x.Set("Cache-Control", "no-store")
	_ = x.Send(status, append(b, '\n'))
}
