// Package spawn measures the time from a start request to a program's first instruction. A small
// static C program (see [Compile]) starts programs by vfork and exec, and compares its clock with
// the clock that each program prints. Programs on the bare host, in runc and in Docker are measured
// alike.
package spawn

import (
	"bufio"
	"bytes"
	"context"
	_ "embed" // spawn.c
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/bench/internal/cc"
)

//go:embed c/spawn.c
var source []byte

// Compile compiles the spawner into dir and returns the path, like [cc.Compile].
func Compile(ctx context.Context, dir string) (string, error) {
	return cc.Compile(ctx, dir, "spawn", source)
}

// Spawner is a running spawner for one command. Only one goroutine at a time may use a Spawner.
type Spawner struct {
	cmd     *exec.Cmd
	program string
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  lockedBuffer
}

// complaint returns the programs' output on stderr so far.
func (s *Spawner) complaint() string { return strings.TrimSpace(s.stderr.String()) }

// lockedBuffer is safe for the goroutine that copies stderr until Wait, and for readers.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Start runs the spawner bin (see [Compile]) for the command argv. argv begins with an absolute
// path; an argument "{}" becomes a new number at every start.
func Start(bin string, argv ...string) (*Spawner, error) {
	return start(exec.Command(bin, argv...), argv)
}

// StartPinned is Start for a command pinned to the CPU on which the spawner creates the process.
func StartPinned(bin string, argv ...string) (*Spawner, error) {
	return start(exec.Command(bin, slices.Concat([]string{"-1"}, argv)...), argv)
}

// StartIn is Start for a command with the root directory root, by way of [Proc].
func StartIn(bin, root string, argv ...string) (*Spawner, error) {
	in := Proc(root, slices.Concat([]string{bin, "-C", root}, argv)...)
	return start(exec.Command(in[0], in[1:]...), argv)
}

// Proc returns a command line that runs argv with the host's /proc mounted at root/proc: through
// /proc/self/exe the loader finds libraries beside a program, such as a JVM's. The mount disappears
// with argv's processes.
func Proc(root string, argv ...string) []string {
	return append([]string{"unshare", "--mount", "sh", "-euc", `mount --bind /proc "$0/proc"; exec "$@"`, root}, argv...)
}

func start(cmd *exec.Cmd, argv []string) (*Spawner, error) {
	s := &Spawner{cmd: cmd, program: argv[0]}
	s.cmd.Stderr = &s.stderr
	var err error
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.stdout = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the spawner: %w", err)
	}
	return s, nil
}

// Sequential starts the command n times in sequence, and returns the duration of each start.
func (s *Spawner) Sequential(n int) ([]time.Duration, error) { return s.ask("seq", n) }

// Burst starts the command n times as fast as possible, and returns the time from the burst's
// beginning to each program's first instruction.
func (s *Spawner) Burst(n int) ([]time.Duration, error) { return s.ask("burst", n) }

func (s *Spawner) ask(what string, n int) ([]time.Duration, error) {
	if _, err := fmt.Fprintln(s.stdin, what, n); err != nil {
		return nil, fmt.Errorf("ask the spawner: %w", err)
	}
	all := make([]time.Duration, 0, n)
	var failed error
	for {
		line, err := s.stdout.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("read the spawner's answer: %w: %s", err, s.complaint())
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "end" {
			break
		}
		ns, err := strconv.ParseInt(line, 10, 64)
		if err != nil {
			failed = errors.New(strings.TrimPrefix(line, "error "))
			continue
		}
		all = append(all, time.Duration(ns))
	}
	if failed != nil {
		return nil, fmt.Errorf("%s %d of %s: %w: %s", what, n, s.program, failed, s.complaint())
	}
	if len(all) != n {
		return nil, fmt.Errorf("%s %d of %s: %d answers", what, n, s.program, len(all))
	}
	return all, nil
}

// Close ends the spawner and waits for it.
func (s *Spawner) Close() error {
	return errors.Join(s.stdin.Close(), s.cmd.Wait())
}
