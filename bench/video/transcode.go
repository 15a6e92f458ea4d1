package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/testbed"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/service"
)

// transcoding holds the results of transcoding one source into all rungs, by the transcoder in
// sandboxes and by the ffmpeg program on the host.
type transcoding struct {
	Seconds    float64         `json:"seconds"` // duration of the source
	Sandbox    []time.Duration `json:"sandbox_ns"`
	FFmpeg     []time.Duration `json:"ffmpeg_ns"`
	SandboxCPU []time.Duration `json:"sandbox_cpu_ns"` // of the engine and all descendants
	FFmpegCPU  []time.Duration `json:"ffmpeg_cpu_ns"`
	Rungs      []rungQuality   `json:"rungs"`
}

// rungQuality holds the results of a rung: sizes in bytes, and the peak signal-to-noise ratio in dB
// against the source scaled to the rung's size.
type rungQuality struct {
	Name         string  `json:"name"`
	SandboxBytes int64   `json:"sandbox_bytes"`
	FFmpegBytes  int64   `json:"ffmpeg_bytes"`
	SandboxPSNR  float64 `json:"sandbox_psnr"`
	FFmpegPSNR   float64 `json:"ffmpeg_psnr"`
}

const (
	transcoderName = "fre-video-transcoder"
	sourceName     = "film"
	sourceSeconds  = 20
	segmentFrames  = 50
	preset         = "veryfast"
)

// transcode measures both in turns, with an engine of its own. The caller must have access to the
// network, for building the transcoder's image.
func transcode(ctx context.Context, o options, dir string) (t *transcoding, err error) {
	if o.state == "" {
		o.state = filepath.Join(dir, "engine")
	}
	source := filepath.Join(dir, "source.mp4")
	if _, err := ffmpeg(ctx, append(strings.Fields(fmt.Sprintf("-f lavfi -i testsrc2=size=1280x720:rate=25:duration=%d,noise=alls=4:allf=t -c:v libx264 -preset veryfast -crf 20 -pix_fmt yuv420p", sourceSeconds)), source)...); err != nil {
		return nil, err
	}
	d, err := testdaemon.Start(ctx, testdaemon.Config{Bin: o.fre, State: o.state})
	if err != nil {
		return nil, err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, d.Stop(stopping))
	}()
	engine := client.New(d.Socket())
	defer engine.Close()
	if err := deployTranscoder(ctx, engine, filepath.Join(dir, "template")); err != nil {
		return nil, err
	}
	if err := giveSource(ctx, engine, source); err != nil {
		return nil, err
	}
	rungs := media.Ladder(1280, 720, 25, 4)
	t = &transcoding{Seconds: sourceSeconds}
	for i := range o.rounds + 1 { // the first round starts the sandboxes and is not counted
		before, err := testbed.CPUTime(testbed.Tree(d.PID())...)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		if err := inSandboxes(ctx, engine, dir, rungs); err != nil {
			return nil, err
		}
		sandboxed := time.Since(began)
		after, err := testbed.CPUTime(testbed.Tree(d.PID())...)
		if err != nil {
			return nil, err
		}
		began = time.Now()
		worked, err := onHost(ctx, dir, source, rungs)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			t.Sandbox, t.FFmpeg = append(t.Sandbox, sandboxed), append(t.FFmpeg, time.Since(began))
			t.SandboxCPU, t.FFmpegCPU = append(t.SandboxCPU, after-before), append(t.FFmpegCPU, worked)
		}
	}
	for _, r := range rungs {
		q := rungQuality{Name: r.Name}
		for _, of := range []struct {
			file  string
			bytes *int64
			psnr  *float64
		}{{sandboxFile(dir, r), &q.SandboxBytes, &q.SandboxPSNR}, {hostFile(dir, r), &q.FFmpegBytes, &q.FFmpegPSNR}} {
			info, err := os.Stat(of.file)
			if err != nil {
				return nil, err
			}
			*of.bytes = info.Size()
			if *of.psnr, err = psnr(ctx, of.file, source, r); err != nil {
				return nil, err
			}
		}
		t.Rungs = append(t.Rungs, q)
	}
	return t, nil
}

func sandboxFile(dir string, r media.Rung) string {
	return filepath.Join(dir, "sandbox-"+r.Name+".mp4")
}
func hostFile(dir string, r media.Rung) string { return filepath.Join(dir, "host-"+r.Name+".mp4") }

func deployTranscoder(ctx context.Context, engine *client.Client, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := service.Template(dir, 10*time.Minute); err != nil {
		return err
	}
	_, err := engine.Functions().DeployDir(ctx, dir, api.DeployRequest{Name: transcoderName, Replace: true}, nil, func(api.Progress) {})
	return err
}

// ask sends an event to the transcoder and returns the body, which the caller closes. A status
// other than 200 is an error.
func ask(ctx context.Context, engine *client.Client, e client.Event) (io.ReadCloser, error) {
	r, err := engine.Functions().Invoke(ctx, transcoderName, e)
	if err != nil {
		return nil, err
	}
	if r.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(r.Body, 4<<10)) // keep the part of the message before an error
		return nil, errors.Join(fmt.Errorf("%s: %s: %s", e.Path, r.Status, words), r.Body.Close())
	}
	return r.Body, nil
}

func giveSource(ctx context.Context, engine *client.Client, path string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const piece = 32 << 20
	for at := 0; at < len(source); at += piece {
		body, err := ask(ctx, engine, client.Event{
			Method: http.MethodPut, Path: "/sources/" + sourceName, Query: url.Values{"offset": {strconv.Itoa(at)}, "size": {strconv.Itoa(len(source))}}.Encode(),
			Body: bytes.NewReader(source[at:min(at+piece, len(source))]),
		})
		if err != nil {
			return err
		}
		if err := body.Close(); err != nil {
			return err
		}
	}
	return nil
}

// inSandboxes makes all rungs with the transcoder and writes the files. As in the service, a
// sandbox has one CPU; so as many chunks run in parallel as CPUs exist, with one thread each.
func inSandboxes(ctx context.Context, engine *client.Client, dir string, rungs []media.Rung) error {
	const segments = 25 * sourceSeconds / segmentFrames
	jobs := min(runtime.NumCPU(), segments)
	chunks := make([][][]byte, jobs) // by chunk, then by rung
	group, ctx := errgroup.WithContext(ctx)
	for i := range jobs {
		group.Go(func() (err error) {
			chunks[i], err = chunk(ctx, engine, i*segments/jobs*segmentFrames, (i+1)*segments/jobs*segmentFrames, rungs)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, r := range rungs {
		var whole []byte
		for _, c := range chunks {
			whole = append(whole, c[i]...)
		}
		if err := os.WriteFile(sandboxFile(dir, r), whole, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// chunk returns the rungs of a range of frames. Only the first chunk contains the initialisation
// segments.
func chunk(ctx context.Context, engine *client.Client, from, to int, rungs []media.Rung) (made [][]byte, err error) {
	question, err := json.Marshal(media.Chunk{Source: sourceName, Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: segmentFrames}, From: from, To: to, Rungs: rungs, Preset: preset, Threads: 1})
	if err != nil {
		return nil, err
	}
	body, err := ask(ctx, engine, client.Event{Method: http.MethodPost, Path: "/chunk", Body: bytes.NewReader(question)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, body.Close()) }()
	r := bufio.NewReaderSize(body, 256<<10)
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var head media.Chunked
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, err
	}
	if head.Frames != to-from || len(head.Rungs) != len(rungs) {
		return nil, fmt.Errorf("%d frames of %d to %d in %d rungs", head.Frames, from, to, len(head.Rungs))
	}
	for _, m := range head.Rungs {
		size := m.Init
		for _, n := range m.Segments {
			size += n
		}
		b := make([]byte, size)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if from > 0 {
			b = b[m.Init:]
		}
		made = append(made, b)
	}
	return made, nil
}

// onHost makes the same rungs with the ffmpeg program, with the settings of package transcode, and
// returns the CPU time.
func onHost(ctx context.Context, dir, source string, rungs []media.Rung) (cpu time.Duration, err error) {
	var split, scaled strings.Builder
	for i, r := range rungs {
		fmt.Fprintf(&split, "[s%d]", i)
		fmt.Fprintf(&scaled, ";[s%d]scale=%d:%d:flags=bicubic,format=yuv420p,setsar=1[o%d]", i, r.Width, r.Height, i)
	}
	filter := fmt.Sprintf("[0:v]fps=fps=25/1:round=near,split=%d%s%s", len(rungs), &split, &scaled)
	args := []string{"-i", source, "-filter_complex", filter}
	for i, r := range rungs {
		args = append(args, strings.Fields(fmt.Sprintf("-map [o%d] -c:v libx264 -preset %s -profile:v high -crf 21 -maxrate %d -bufsize %d -g %d -keyint_min %[5]d -sc_threshold 0 -forced-idr 1 -movflags +frag_keyframe+empty_moov+default_base_moof",
			i, preset, r.BitRate, 2*r.BitRate, segmentFrames))...)
		args = append(args, hostFile(dir, r))
	}
	return ffmpeg(ctx, args...)
}

var psnrAverage = regexp.MustCompile(`PSNR .*average:([0-9.]+|inf)`)

// psnr compares a rung with the source scaled to the rung's size.
func psnr(ctx context.Context, file, source string, r media.Rung) (float64, error) {
	out, err := exec.CommandContext(ctx, "ffmpeg", "-nostdin", "-i", file, "-i", source,
		"-lavfi", fmt.Sprintf("[1:v]scale=%d:%d:flags=bicubic[s];[0:v][s]psnr", r.Width, r.Height), "-f", "null", "-").CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("psnr of %s: %w: %s", file, err, out)
	}
	return parsePSNR(string(out))
}

func parsePSNR(out string) (float64, error) {
	m := psnrAverage.FindStringSubmatch(out)
	if m == nil {
		return 0, errors.New("ffmpeg tells no PSNR")
	}
	return strconv.ParseFloat(m[1], 64)
}

// times returns the time of the program on the host divided by the time of the sandboxes.
func times(program, sandboxes []time.Duration) float64 {
	seconds := func(of []time.Duration) float64 {
		var values []float64
		for _, d := range of {
			values = append(values, d.Seconds())
		}
		return testbed.Median(values)
	}
	return seconds(program) / seconds(sandboxes)
}

// markdown writes the section of the page.
func (t *transcoding) markdown(p func(string, ...any)) {
	p("\n## Transcoding\n")
	p("%g seconds of 720p in %d rungs, x264 %s, by the transcoder, one sandbox for each CPU, and by the ffmpeg program on the host with the same settings, in turns (%d each). PSNR against the source in the rung's size.\n", t.Seconds, len(t.Rungs), preset, len(t.Sandbox))
	p("| rung | bytes, sandbox | bytes, ffmpeg | PSNR, sandbox | PSNR, ffmpeg |\n|---|---:|---:|---:|---:|")
	apart := 0.
	for _, r := range t.Rungs {
		p("| %s | %d | %d | %.2f dB | %.2f dB |", r.Name, r.SandboxBytes, r.FFmpegBytes, r.SandboxPSNR, r.FFmpegPSNR)
		apart = max(apart, math.Abs(r.SandboxPSNR-r.FFmpegPSNR))
	}
	verdict := map[bool]string{true: "met", false: "missed"}
	p("\n| | | aim | |\n|---|---:|---:|---|")
	for _, row := range []struct {
		name  string
		times float64
	}{{"speed in sandboxes ÷ ffmpeg on the host", times(t.FFmpeg, t.Sandbox)}, {"CPU time of ffmpeg on the host ÷ that of the engine with its sandboxes", times(t.FFmpegCPU, t.SandboxCPU)}} {
		p("| %s | %s | ≥ 0.95 × | %s |", row.name, testbed.Digits(row.times), verdict[row.times >= 0.95])
	}
	p("| PSNR apart, at most | %.2f dB | ≤ 0.1 dB | %s |", apart, verdict[apart <= 0.1])
}
