package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/bench/internal/cc"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/testdaemon"
)

//go:embed c/sitter.c
var sitterSource []byte

const sitter = "bench-sitter"

// putSitter puts the image of the sandboxes into the registry of a state directory that no engine
// uses. Each sandbox has room for the given number of files.
func putSitter(ctx context.Context, state, dir string, files int) error {
	program, err := cc.Compile(ctx, dir, "sitter", sitterSource)
	if err != nil {
		return err
	}
	var config image.Config
	// A page and an inode for each file, doubled.
	config.Resources.TmpBytes = int64(files+1024) * 4096 * 2
	config.Resources.MemoryBytes = config.Resources.TmpBytes*2 + 64<<20
	return testdaemon.PutImages(ctx, state, testdaemon.Function{Name: sitter, Program: program, Config: config})
}

// crowd is a set of running sandboxes.
type crowd struct {
	client *client.Client
	cancel context.CancelFunc
	wait   sync.WaitGroup
	all    []*sitting
}

// sitting is a sandbox in a crowd. The program writes a byte to stdout when it runs. A byte to
// stdin makes the program write the files; a second byte on stdout reports the end of writing.
type sitting struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
}

// sit starts n sandboxes. Each sandbox writes the given number of files on request.
func sit(ctx context.Context, socket string, n, files int) (*crowd, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &crowd{client: client.New(socket), cancel: cancel, all: make([]*sitting, n)}
	run := api.RunRequest{Image: sitter + ":1", Args: []string{"/function/program", strconv.Itoa(files)}}
	group, _ := errgroup.WithContext(ctx)
	group.SetLimit(seedWorkers)
	for i := range c.all {
		group.Go(func() error {
			in, stdin := io.Pipe()
			stdout, out := io.Pipe()
			c.all[i] = &sitting{stdin: stdin, stdout: stdout}
			c.wait.Go(func() {
				_, err := c.client.Sandboxes().Run(ctx, run, client.RunIO{Stdin: in, Stdout: out, Stderr: io.Discard})
				if err == nil {
					err = errors.New("the sandbox has ended")
				}
				_ = out.CloseWithError(err)
				_ = in.CloseWithError(err)
			})
			return c.all[i].said()
		})
	}
	if err := group.Wait(); err != nil {
		c.close()
		return nil, fmt.Errorf("start %d sandboxes: %w", n, err)
	}
	return c, nil
}

// said waits for the next byte from the sandbox.
func (s *sitting) said() error {
	_, err := s.stdout.Read(make([]byte, 1))
	return err
}

// fill lets the first n sandboxes write their files.
func (c *crowd) fill(n int) error {
	for _, s := range c.all[:min(n, len(c.all))] {
		if _, err := s.stdin.Write([]byte("f")); err != nil {
			return fmt.Errorf("fill a sandbox: %w", err)
		}
		if err := s.said(); err != nil {
			return fmt.Errorf("fill a sandbox: %w", err)
		}
	}
	return nil
}

// close ends the sandboxes and waits for their clients.
func (c *crowd) close() {
	c.cancel()
	for _, s := range c.all {
		if s != nil {
			_ = s.stdout.Close()
		}
	}
	c.wait.Wait()
	c.client.Close()
}

// containers makes n containers on dockerd without starting them, and puts files into the first
// full containers.
func containers(ctx context.Context, socket, image string, n, full, filesEach int) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	call := func(method, path, kind string, body io.Reader, want int) error {
		r, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, body)
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", kind)
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != want {
			err = fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, text)
		}
		return err
	}
	for i := range n {
		name := fmt.Sprintf("bench-%d", i)
		body := strings.NewReader(fmt.Sprintf(`{"Image":%q,"Cmd":["/function/program"],"HostConfig":{"NetworkMode":"none"}}`, image))
		if err := call(http.MethodPost, "/containers/create?name="+name, "application/json", body, http.StatusCreated); err != nil {
			return err
		}
		if i >= full {
			continue
		}
		in, out := io.Pipe()
		go func() { _ = out.CloseWithError(files(out, filesEach, "files/")) }()
		err := call(http.MethodPut, "/containers/"+name+"/archive?path=/", "application/x-tar", in, http.StatusOK)
		_ = in.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
