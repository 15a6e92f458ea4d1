package transcode_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/video/ffmpeg"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// childVariable turns the test's program into a child: the child reads a file name per line, calls
// [work] for each, and writes a [report] of each.
const childVariable = "TRANSCODE_CHILD"

func children() {
	out := json.NewEncoder(os.Stdout)
	for names := bufio.NewScanner(os.Stdin); names.Scan(); {
		if err := out.Encode(work(names.Text())); err != nil {
			panic(err)
		}
	}
}

// report is a child's answer after all work on a file.
type report struct {
	Errors map[string]string // by attempted operation; "" for success
	Source *media.Source     // nil if Probe has refused
	Frames map[string]int    // of chunks
	Cues   int               // of the first track of subtitles
	Thumbs int
	Sound  float64 // seconds, nearly
	Live   ffmpeg.Counts
	Peak   int // bytes of memory at most
}

// work runs all operations of the transcoder on a file, as far as the file's streams allow, and
// returns a report. work panics if the results contradict each other.
func work(path string) *report {
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) // VmHWM begins anew
	r := &report{Errors: map[string]string{}, Frames: map[string]int{}}
	did := func(what string, err error) bool {
		r.Errors[what] = ""
		if err != nil {
			r.Errors[what] = err.Error()
			if err.Error() == "" {
				panic("an error without words")
			}
		}
		return err == nil
	}
	var err error
	r.Source, err = transcode.Probe(path, 0)
	did("probe", err)
	first := map[string]int{}
	offset := 0.0
	if r.Source != nil {
		offset = r.Source.Offset
		for _, s := range r.Source.Streams {
			if _, ok := first[s.Kind]; !ok {
				first[s.Kind] = s.Index
			}
		}
	}
	for _, from := range []int{0, 25} {
		name := fmt.Sprint("chunk", from)
		head, bodies, err := transcode.Chunk(path, media.Chunk{
			Stream: first["video"], Offset: offset, Grid: media.Grid{Rate: media.Fraction{Num: 25, Den: 1}, Segment: 25}, From: from, To: from + 50,
			Rungs: []media.Rung{{Width: 64, Height: 36, BitRate: 200_000}, {Width: 32, Height: 18, BitRate: 100_000}}, Preset: "ultrafast", Threads: 1,
		})
		if did(name, err) {
			if r.Frames[name] = head.Frames; head.Frames == 0 {
				r.Errors[name] = "nothing is left"
			}
			for i, made := range head.Rungs {
				n := made.Init
				for _, s := range made.Segments {
					n += s
				}
				if n != len(bodies[i]) || len(made.Segments) != (head.Frames+24)/25 {
					panic(fmt.Sprintf("%+v with bodies of %d bytes", head, len(bodies[i])))
				}
			}
		}
	}
	made, parts, err := transcode.Sound(path, media.Sound{Stream: first["audio"], Segment: 2, Offset: offset})
	if did("sound", err) {
		r.Sound = 2 * float64(len(made.Segments))
		n := made.Init
		for _, s := range made.Segments {
			n += s
		}
		if body := bytes.Join(parts, nil); n != len(body) {
			panic(fmt.Sprintf("%+v with %d bytes", made, len(body)))
		}
	}
	sheets, pictures, err := transcode.Thumbs(path, media.Thumbs{Stream: first["video"], Offset: offset, Interval: 1, Width: 32, Columns: 5, Rows: 5})
	if did("thumbs", err) {
		if r.Thumbs = sheets.Count; len(pictures) != (sheets.Count+24)/25 || sheets.Count > media.MostThumbs {
			panic(fmt.Sprintf("%+v with %d sheets", sheets, len(pictures)))
		}
	}
	text, err := transcode.Text(path, media.Text{Stream: first["subtitle"], Offset: offset})
	if did("text", err) {
		r.Cues = bytes.Count(text, []byte(" --> "))
	}
	r.Live = ffmpeg.Live()
	status, err := os.Open("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			_, _ = fmt.Sscan(v, &r.Peak)
			r.Peak <<= 10
		}
	}
	return r
}

// errCrashed says that the libraries' code ended a child, errHung that the child was too slow.
var errCrashed, errHung = errors.New("the libraries have crashed"), errors.New("it takes too long")

// worker is a child process, as the transcoder is a process of its own: a crash of the libraries
// ends only the child. Close the worker unless [worker.work] has reported its end.
type worker struct {
	cmd   *exec.Cmd
	names io.WriteCloser
	lines chan []byte // the child's output; closed when the child has ended
	words bytes.Buffer
}

func newWorker(t testing.TB) *worker {
	t.Helper()
	w := &worker{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0]), lines: make(chan []byte)}
	w.cmd.Env = append(os.Environ(), childVariable+"=1")
	w.cmd.Stderr = &w.words
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if w.names, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			w.lines <- line
		}
	}()
	return w
}

// close ends the child and says how it ended.
func (w *worker) close() error {
	_ = w.names.Close()
	for range w.lines {
		continue // no request is pending
	}
	return w.cmd.Wait()
}

// work has the child work on a file. Errors except errCrashed and errHung are faults of FRE's own
// code. After any error the child has ended.
func (w *worker) work(path string, limit time.Duration) (*report, error) {
	if _, err := io.WriteString(w.names, path+"\n"); err != nil {
		return nil, errors.Join(err, w.close())
	}
	var line []byte
	select {
	case line = <-w.lines:
	case <-time.After(limit):
		_ = w.cmd.Process.Kill()
		_ = w.close()
		return nil, errHung
	}
	if line == nil {
		err := w.close()
		if text := w.words.String(); strings.Contains(text, "during cgo execution") || strings.Contains(text, "on non-Go thread") || !strings.Contains(text, "panic") {
			return nil, fmt.Errorf("%w: %w\n%s", errCrashed, err, text)
		}
		return nil, fmt.Errorf("%w\n%s", err, &w.words)
	}
	r := &report{}
	err := json.Unmarshal(line, r)
	if err == nil && r.Live != (ffmpeg.Counts{}) {
		err = fmt.Errorf("%+v have not been released", r.Live)
	}
	for what, words := range r.Errors {
		if strings.Contains(words, " @ 0x") {
			err = errors.Join(err, fmt.Errorf("%s: %s", what, words))
		}
	}
	if err != nil {
		return r, errors.Join(err, w.close())
	}
	return r, nil
}
