package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/fre-engine/fre/bench/internal/testbed"
)

// target is a request to a server.
type target struct {
	label  string
	server string
	path   string // one path, or several separated by blanks, requested in turn
}

// row is a comparison. The first target is fre-video's.
type row struct {
	name, label string
	connections int
	rate        bool // open loop, at half the rate of the slowest target
	targets     []target
	aims        []testbed.Aim
}

const (
	freVideo, freBefore = "fre-video", "fre-video before"
	nginxFiles          = "nginx"
	nginxVOD            = "nginx-vod"
	plainBuffer         = "plain: net/http, bytes.Buffer"
	plainPooled         = "plain, with a pool of buffers"
	plainSendFile       = "plain, with sendfile"
	freCached           = "fre-video, once cached"
)

// pair holds the addresses of the same resource at fre-video and at nginx-vod-module.
type pair struct {
	name, label string
	fre, vod    string
	file        string // nginx's file, "" if missing
	least       float64
	cached      float64 // the aim once the resource is cached; 0: not cached
}

// pairs returns the playlists, and the film's segments, which at least nginx-vod-module packages
// just in time. Segments are requested in turn.
func pairs(segments int) []pair {
	all := func(path string) string {
		var b strings.Builder
		for n := range segments {
			fmt.Fprintf(&b, path+" ", n+1)
		}
		return b.String()
	}
	segment := func(film, kind, suffix string) string {
		return all("/assets/" + film + "/" + kind + "/" + filmRendition + "/%d" + suffix)
	}
	return []pair{
		{name: "playlist master", label: "The master playlist", fre: playlists["master.m3u8"], vod: "/ts/film.mp4/master.m3u8", file: "master.m3u8", least: 1},
		{name: "playlist media", label: "A media playlist", fre: playlists["media.m3u8"], vod: "/fmp4/film.mp4/index-v1.m3u8", file: "media.m3u8", least: 1},
		{name: "playlist manifest", label: "The DASH manifest", fre: playlists["manifest"], vod: "/dash/film.mp4/manifest.mpd", file: "manifest", least: 1},
		{
			name: "jit fMP4", label: "A segment of 1 MB as fMP4: nginx-vod packages it for each request, fre-video has it stored so",
			fre: segment(filmAsset, "cmaf", ".m4s"), vod: all("/fmp4/film.mp4/seg-%d-v1.m4s"), least: 5,
		},
		{
			name: "jit cbcs", label: "A segment of 1 MB as fMP4, encrypted by cbcs, packaged for each request",
			fre: segment(filmCBCS, "cmaf", ".m4s"), vod: all("/cbcs/film.mp4/seg-%d-v1.m4s"), least: 5, cached: 8,
		},
		{
			name: "jit TS", label: "A segment of 1 MB as MPEG-TS, packaged for each request",
			fre: segment(filmAsset, "ts", ".ts"), vod: all("/ts/film.mp4/seg-%d-v1.ts"), least: 1, cached: 1,
		},
		{
			name: "jit AES-128", label: "A segment of 1 MB as MPEG-TS, encrypted by AES-128, packaged for each request",
			fre: segment(filmAES128, "ts", ".ts"), vod: all("/aes/film.mp4/seg-%d-v1.ts"), least: 1, cached: 1,
		},
	}
}

// rows returns all comparisons, for a film with the given number of segments.
func rows(segments int) []row {
	segment := func(bytes int) string { return "/assets/" + sizesAsset + "/cmaf/v" + strconv.Itoa(bytes) + "/2.m4s" }
	ofNginx := func(path string) []target {
		return []target{{nginxFiles, nginxOn, path}, {nginxFiles, nginxOff, path}}
	}
	var all []row
	for i, s := range segmentSizes {
		path := segment(s.bytes)
		all = append(all, row{
			name: "segment " + s.label, label: "Stored segments of " + s.label, connections: 16,
			targets: append([]target{{freVideo, videoServer, path}, {freBefore, beforeServer, path}}, ofNginx("/"+strconv.Itoa(s.bytes))...),
			aims: []testbed.Aim{
				{Of: freVideo, To: nginxFiles, What: "requests/s", Least: []float64{1.2, 1, 1.05}[i]},
				{Of: freVideo, To: freBefore, What: "requests/s", Least: 1},
				{Of: freVideo, To: freBefore, What: "CPU s/GB", Most: 1},
			},
		})
	}
	ofPlain := func(path string) []target {
		return []target{{freVideo, videoServer, path}, {plainBuffer, rolePlain, path}, {plainPooled, rolePooled, path}, {plainSendFile, roleSendFile, path}}
	}
	for _, s := range segmentSizes {
		all = append(all, row{
			name: "plain " + s.label, label: "The plain build: stored segments of " + s.label, connections: 16, targets: ofPlain(segment(s.bytes)),
			aims: []testbed.Aim{
				{Of: freVideo, To: plainBuffer, What: "requests/s", Least: 6},
				{Of: freVideo, To: plainBuffer, What: "p99", Most: 0.2},
				{Of: freVideo, To: plainBuffer, What: "MB/s allocated", Most: 1. / 40},
			},
		})
	}
	all = append(all, row{
		name: "plain, same load", label: "The plain build: stored segments of 512 KiB, as many each second of each (open loop)", connections: 256, rate: true,
		targets: ofPlain(segment(512 << 10)),
		aims: []testbed.Aim{
			{Of: freVideo, To: plainBuffer, What: "p99", Most: 0.2},
			{Of: freVideo, To: plainBuffer, What: "MB/s allocated", Most: 1. / 40},
		},
	})
	for _, p := range pairs(segments) {
		w := row{
			name: p.name, label: p.label, connections: 16, targets: []target{{freVideo, videoServer, p.fre}, {nginxVOD, vodServer, p.vod}},
			aims: []testbed.Aim{{Of: freVideo, To: nginxVOD, What: "requests/s", Least: p.least}},
		}
		if p.cached > 0 {
			w.targets[0].server = coldServer
			w.targets = append(w.targets, target{freCached, videoServer, p.fre})
			w.aims = append(w.aims, testbed.Aim{Of: freCached, To: nginxVOD, What: "requests/s", Least: p.cached})
		}
		if p.file != "" { // with playlists the client may be the bottleneck
			w.aims = append(w.aims, testbed.Aim{Of: freVideo, To: nginxVOD, What: "CPU µs/request", Most: 1})
			w.targets = append(w.targets, ofNginx("/"+p.file)...)
		}
		all = append(all, w)
	}
	return all
}

// measure measures the rows, the targets of each row in turns. Missing targets are left out, and so
// are rows with fewer than two targets.
func (b *bench) measure(ctx context.Context, r *result) error {
	for _, w := range rows(b.segments) {
		if !strings.Contains(w.name, b.only) {
			continue
		}
		w.targets = slices.DeleteFunc(w.targets, func(t target) bool { return b.servers[t.server] == nil })
		w.targets = slices.DeleteFunc(w.targets, func(t target) bool {
			_, err := testbed.Get(ctx, "http://"+b.servers[t.server].Addr+strings.Fields(t.path)[0])
			if err != nil {
				b.skipped = append(b.skipped, fmt.Sprintf("%s has no %s (%v)", t.label, w.name, err))
			}
			return err != nil
		})
		if len(w.targets) < 2 {
			continue
		}
		res, err := b.row(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.Rows = append(r.Rows, res)
	}
	if strings.Contains("viewers", b.only) {
		var err error
		if r.Audience, err = b.audience(ctx); err != nil {
			return fmt.Errorf("viewers: %w", err)
		}
	}
	return ctx.Err()
}

func (b *bench) row(ctx context.Context, w row) (*testbed.Row, error) {
	res := &testbed.Row{Name: w.name, Label: w.label, Connections: w.connections, Aims: w.aims}
	if w.rate {
		res.Rate = math.Inf(1)
		for _, t := range w.targets {
			one, err := b.client.Turn(ctx, b.servers[t.server], t.path, 16, 0)
			if err != nil {
				return nil, err
			}
			res.Rate = min(res.Rate, one.PerSecond/2)
		}
		res.Rate = max(res.Rate, math.Ceil(1/min(b.slice, cmp.Or(b.warmUp, b.slice)).Seconds())) // at least one request per turn, however slow the servers are
	}
	cells := make([]*testbed.Cell, len(w.targets))
	for i, t := range w.targets {
		cells[i] = &testbed.Cell{Label: t.label}
	}
	for range b.rounds {
		for i, t := range w.targets {
			one, err := b.client.Turn(ctx, b.servers[t.server], t.path, w.connections, res.Rate)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", t.label, err)
			}
			cells[i].Turns = append(cells[i].Turns, one)
		}
	}
	res.Cells = testbed.Better(cells)
	return res, nil
}
