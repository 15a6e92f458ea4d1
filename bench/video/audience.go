package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/internal/testdaemon"
)

// audience holds the CPU costs of viewers that watch the film at 4 Mbit/s, the same number from
// each server. fre-bench video simulates the viewers.
type audience struct {
	Viewers int                    `json:"viewers"`
	Turns   map[string][]attention `json:"turns"` // by server: videoServer, nginxOn
}

// attention holds one turn.
type attention struct {
	Played       time.Duration `json:"played_ns"` // total of all viewers
	Rebufferings int           `json:"rebufferings"`
	GivenUp      int           `json:"given_up"`
	CPU          time.Duration `json:"cpu_ns"` // of the server
}

// perCPU returns the number of viewers that one CPU can serve.
func (a attention) perCPU() float64 { return a.Played.Seconds() / a.CPU.Seconds() }

// layFilm writes the film's playlists and segments as files for nginx, at the addresses that the
// playlists contain.
func (b *bench) layFilm(ctx context.Context) error {
	a, err := readAsset(b.dir, filmAsset)
	if err != nil {
		return err
	}
	names := []string{"hls/master.m3u8", "hls/" + filmRendition + ".m3u8", "cmaf/" + filmRendition + "/init.mp4"}
	for n := range a.Rendition(filmRendition).Segments {
		names = append(names, "cmaf/"+filmRendition+"/"+strconv.Itoa(n+1)+".m4s")
	}
	for _, name := range names {
		text, err := testbed.Get(ctx, "http://"+b.servers[videoServer].Addr+"/assets/"+filmAsset+"/"+name)
		if err != nil {
			return err
		}
		path := filepath.Join(filesDir(b.dir), "film", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// audience lets viewers watch the film, from the servers in turns.
func (b *bench) audience(ctx context.Context) (*audience, error) {
	if b.servers[nginxOn] == nil {
		return nil, nil
	}
	if err := b.layFilm(ctx); err != nil {
		return nil, err
	}
	all := &audience{Viewers: b.viewers, Turns: map[string][]attention{}}
	for range b.rounds {
		for name, path := range map[string]string{videoServer: "/assets/" + filmAsset, nginxOn: "/film"} {
			one, err := b.attention(ctx, b.servers[name], path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all.Turns[name] = append(all.Turns[name], one)
		}
	}
	return all, nil
}

func (b *bench) attention(ctx context.Context, s *testbed.Server, path string) (one attention, err error) {
	length := 8 * b.slice
	before, err := testbed.CPUTime(testbed.Tree(s.PID)...)
	if err != nil {
		return one, err
	}
	var out string
	err = testbed.OnCPU(b.cpus[1], func() (err error) {
		out, err = testdaemon.Command(ctx, b.client.Bin, "video", "http://"+s.Addr+path+"/hls/master.m3u8", "--viewers", strconv.Itoa(b.viewers),
			"--rate", "4", "--seeks", "0", "--ramp", (length / 8).String(), "--duration", length.String(), "--seed", "1", "--json", "-")
		return err
	})
	if err != nil {
		return one, err
	}
	after, err := testbed.CPUTime(testbed.Tree(s.PID)...)
	if err != nil {
		return one, err
	}
	var report struct {
		Played      time.Duration `json:"played"`
		GivenUp     int           `json:"given_up"`
		Rebuffering struct {
			Count int `json:"count"`
		} `json:"rebuffering"`
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&report); err != nil {
		return one, err
	}
	return attention{report.Played, report.Rebuffering.Count, report.GivenUp, after - before}, nil
}

// markdown writes the section of the page.
func (a *audience) markdown(p func(string, ...any)) {
	p("\n## Viewers at 4 Mbit/s\n")
	p("%d of fre-bench video, from each server in turn. *Viewers for each CPU*: seconds that all have seen ÷ seconds of the server's CPU.\n", a.Viewers)
	p("| server | viewers for each CPU | rebufferings | sessions given up |\n|---|---:|---:|---:|")
	median := map[string]float64{}
	for _, s := range []struct{ name, label string }{{videoServer, freVideo}, {nginxOn, nginxFiles}} {
		var perCPU []float64
		stops, given := 0, 0
		for _, one := range a.Turns[s.name] {
			perCPU = append(perCPU, one.perCPU())
			stops, given = stops+one.Rebufferings, given+one.GivenUp
		}
		median[s.name] = testbed.Median(perCPU)
		p("| %s | %s | %d | %d |", s.label, testbed.Digits(median[s.name]), stops, given)
	}
	ratio := median[videoServer] / median[nginxOn]
	p("\n| | | aim | |\n|---|---:|---:|---|")
	p("| viewers for each CPU of %s ÷ %s | %s | ≥ 0.95 × | %s |", freVideo, nginxFiles, testbed.Digits(ratio), map[bool]string{true: "met", false: "missed"}[ratio >= 0.95])
}
