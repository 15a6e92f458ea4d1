package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/bench/internal/cc"
	"github.com/fre-engine/fre/bench/internal/peer"
	"github.com/fre-engine/fre/bench/internal/stats"
	"github.com/fre-engine/fre/internal/fretest"
)

// sample is the result of a run with two languages, with or without docker.
func sample(docker bool) *result {
	ms := time.Millisecond
	r := &result{
		Size: size{
			Clones: []int{8}, Cgroups: []int{4}, Serial: []int{2}, Bursts: []int{4},
			Rounds: 1, Instances: 2, Memory: 3,
		},
		Languages: []string{"node", "python"},
		Cgroups: []*groups{
			{How: "create", AtOnce: 4, Rounds: [][]time.Duration{{4 * ms, 6 * ms}}},
			{How: "reuse", AtOnce: 4, Rounds: [][]time.Duration{{2 * ms, 3 * ms}}},
		},
	}
	for _, c := range namespaceCases {
		c.AtOnce = 8
		c.Rounds = []stats.Summary{{Slowest: 2 * ms}}
		if c.Namespaces == "net" {
			c.Rounds[0].Slowest = 30 * ms
		}
		r.Namespaces = append(r.Namespaces, &c)
	}
	took := map[string]time.Duration{peer.BareName: 2 * ms, peer.FREName: 3 * ms}
	held := map[string]int64{"bare": 90e6, "fre": 92e6}
	if docker {
		took[peer.DockerName], held["docker"] = 300*ms, 115e6
	}
	s := &serial{Count: 2}
	for _, name := range peerNames {
		if d := took[name]; d > 0 {
			s.Series = append(s.Series, &peer.Series{Peer: name, AtOnce: 1, Rounds: [][]time.Duration{{d, d}}})
			r.Bursts = append(r.Bursts, &peer.Series{Peer: name, AtOnce: 4, Rounds: [][]time.Duration{{d, d, d, 2 * d}}})
		}
	}
	r.Serial = []*serial{s}
	for _, set := range []string{"node", "python", mixed} {
		for platform, bytes := range held {
			r.Memory = append(r.Memory, &holding{
				Set: set, Platform: platform, Instances: 2,
				Processes: []int64{1, bytes, 1e12}, Helpers: []int64{0, 5e6, 0}, Available: []int64{bytes, 1, 1e12},
			})
		}
	}
	if docker {
		r.Pairs = []*pair{
			{Common: "Python", Platform: "fre", Cached: []int64{1, 40e6, 1e12}, Processes: []int64{1, 18e6, 1e12}, Helpers: []int64{0, 2e6, 0}},
			{Common: "Python", Platform: "docker", Cached: []int64{80e6}, Processes: []int64{24e6}, Helpers: []int64{16e6}},
		}
	}
	return r
}

func TestPage(t *testing.T) {
	var page strings.Builder
	sample(true).page(&page)
	for _, want := range []string{
		"| net | 30.00 | 15.0 |",
		"| 4 | 4000.0 | 6000.0 | 2000.0 | 3000.0 | 2 |",
		"| 2 | fre | 3.00 | 3.00 | 3.00 | 1.50 | 100 |",
		"| 4 | fre | 3.00 | 6.00 | 6.00 | 1.50 | 100 |",
		"| 10, mixed | 2 | fre | 92.0 | 97.0 | 92.0 | 46.00 | 1.02 | 0.81 | 0.80 | 1.02 |",
		"| Python | fre | 40.0 | 0.50 | 18.0 | 0.75 | 20.0 | 0.50 |",
		"| 9, node | 2 | docker | 115.0 | 120.0 | 115.0 | 57.50 | 1.28 | 1.00 | 1.00 | 1.28 |",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no line %s in:\n%s", want, page.String())
		}
	}
}

func TestPageWithoutDocker(t *testing.T) {
	var page strings.Builder
	r := sample(false)
	r.page(&page)
	for _, want := range []string{
		"| 2 | fre | 3.00 | 3.00 | 3.00 | 1.50 | – |",
		"| 10, mixed | 2 | fre | 92.0 | 97.0 | 92.0 | 46.00 | 1.02 | – | – | 1.02 |",
	} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("no line %s in:\n%s", want, page.String())
		}
	}
	if svg := r.plots()["mixed.svg"]; bytes.Contains(svg, []byte("docker")) {
		t.Errorf("docker, which was not measured, is in:\n%s", svg)
	}
}

// Every picture of the page exists and is readable.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	r := sample(true)
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "paper.md"))
	if err != nil {
		t.Fatal(err)
	}
	pictures := 0
	for _, part := range strings.Split(string(page), "](paper/")[1:] {
		name, _, _ := strings.Cut(part, ")")
		text, err := os.ReadFile(filepath.Join(dir, "paper", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if filepath.Ext(name) != ".svg" {
			continue
		}
		pictures++
		for d := xml.NewDecoder(bytes.NewReader(text)); err == nil; {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := len(r.plots()); pictures != want {
		t.Errorf("the page shows %d pictures, want all %d", pictures, want)
	}
}

func compile(t *testing.T, name string, source []byte) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	bin, err := cc.Compile(t.Context(), t.TempDir(), name, source)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestClones(t *testing.T) {
	fretest.RequireRoot(t)
	bin := compile(t, "clones", clonesSource)
	for _, c := range namespaceCases {
		c.AtOnce = 5
		s, err := c.measure(t.Context(), bin)
		if err != nil || s.Count != 5 || s.P50 <= 0 {
			t.Errorf("%s: got %+v, error %v, want 5 processes", c.Namespaces, s, err)
		}
	}
	impossible := clones{AtOnce: 1, flags: -1}
	if s, err := impossible.measure(t.Context(), bin); err == nil {
		t.Errorf("all flags there are: got %+v, want an error", s)
	}
}

func TestGroups(t *testing.T) {
	fretest.RequireRoot(t)
	fretest.CheckLeaks(t)
	for _, how := range []string{"create", "reuse"} {
		g := &groups{How: how, AtOnce: 3}
		took, err := g.measure(t.Context())
		if err != nil || len(took) != 3 {
			t.Errorf("%s: got %v, error %v, want 3 durations", how, took, err)
		}
	}
}

// A program started by enter answers on its channel.
func TestEnter(t *testing.T) {
	bin := compile(t, "enter", enterSource)
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(bin, socket, "/bin/sh", "-c", "echo $1 >&3", "sh", "hello")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "hello\n" {
		t.Errorf("got %q, error %v", got, err)
	}
}
