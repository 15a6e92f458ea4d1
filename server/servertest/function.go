package servertest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/build"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

// LeaveRoom returns ctx and never cancels it.
func (e *Engine) LeaveRoom(ctx context.Context) (context.Context, func(), error) {
	return ctx, func() {}, nil
}

// Hold counts the holders. Deploy fails without a holder.
func (e *Engine) Hold() (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holds++
	return sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.holds--
	})
}

// Deploy makes a function with one idle sandbox and one log line.
func (e *Engine) Deploy(_ context.Context, name string, img *store.Image, o engine.DeployOptions) (*engine.Function, error) {
	e.mu.Lock()
	held := e.holds > 0
	e.mu.Unlock()
	if !held {
		return nil, errors.New("nobody holds the image from its build to its deployment")
	}
	name, tenant, err := engine.NameOf(name, img)
	if err != nil {
		return nil, err
	}
	f := &engine.Function{Name: name, Image: img.Digest, ImageRef: img.Name + ":" + img.Version, Deployed: Epoch, Instances: 1}
	if err := json.Unmarshal(img.Config, &f.Config); err != nil {
		return nil, err
	}
	f.Config.Tenant = tenant
	if len(img.Names) == 0 {
		f.ImageRef = img.Built
	}
	if f.Config.Protocol == image.ProtocolNone {
		return nil, fmt.Errorf("%s: %w", img.Name, engine.ErrNotReady)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.functions[name]; old != nil && !o.Replace {
		if template, _, _ := strings.Cut(old.ImageRef, ":"); template != img.Name {
			return nil, fmt.Errorf("deploy %s: %w by a function of template %s", name, engine.ErrNameTaken, template)
		}
	}
	if o.Within != "" && (tenant != o.Within || build.ImageTenant(img) != o.Within) {
		return nil, fmt.Errorf("deploy %s of tenant %s: %w", name, tenant, engine.ErrForeign)
	}
	e.endLocked(name)
	e.functions[name] = f
	sum := sha256.Sum256([]byte(name))
	e.sandboxes = append(e.sandboxes, &live.Sandbox{
		ID: fmt.Sprintf("%x", sum[:8]), Function: name, Image: f.ImageRef, Tenant: f.Config.Tenant,
		Command: "/opt/fre/main", State: "idle", PID: 4242, Created: Epoch, Defences: []string{"seccomp", "capabilities"},
	})
	e.reviseLocked(f, img, o)
	e.noteLocked(store.ChangeFunction, store.ActionDeploy, name, name)
	e.logLocked(name, "deployed")
	return f, nil
}

// Slim removes one file from the function's image.
func (e *Engine) Slim(_ context.Context, function string, o image.SlimOptions) (*image.Slimmed, error) {
	f, err := e.Function(function)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(f.ImageRef, image.SlimSuffix) {
		return nil, fmt.Errorf("%s %w again", f.ImageRef, image.ErrSlimmed)
	}
	out := &image.Slimmed{
		Before: image.SlimmedSize{Files: 10, Bytes: 1000}, After: image.SlimmedSize{Files: 9, Bytes: 900},
		Gone: []store.Entry{{Path: "usr/lib/unused.so", Kind: store.KindFile, Size: 100}},
	}
	if slices.Contains(o.Keep, "usr/lib/unused.so") {
		out.After, out.Gone = out.Before, []store.Entry{}
	}
	if o.DryRun {
		return out, nil
	}
	img, err := e.Image(string(f.Image))
	if err != nil {
		return nil, err
	}
	made := *img
	made.Digest = store.Digest(fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(img.Digest))))
	made.Built, made.Name, made.Version, made.Names = img.Built+image.SlimSuffix, "", "", []string{}
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.IndexFunc(e.images, func(img *store.Image) bool { return img.Digest == made.Digest }); i >= 0 {
		out.Image = e.images[i]
		return out, nil
	}
	e.images = slices.Insert(e.images, 0, &made)
	out.Image = &made
	return out, nil
}

// Functions lists the functions by name.
func (e *Engine) Functions() []*engine.Function {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []*engine.Function
	for _, f := range e.functions {
		shown := *f // a copy, because Invoke changes the function
		list = append(list, &shown)
	}
	slices.SortFunc(list, func(a, b *engine.Function) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// Function describes a function.
func (e *Engine) Function(name string) (*engine.Function, error) {
	name, _, _ = strings.Cut(name, "@")
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.functions[name]
	if f == nil {
		return nil, fmt.Errorf("function %q: %w", name, fs.ErrNotExist)
	}
	shown := *f
	return &shown, nil
}

// Closed returns a channel that is never closed.
func (e *Engine) Closed() <-chan struct{} { return nil }

// RemoveFunction removes a function and ends the function's sandboxes.
func (e *Engine) RemoveFunction(_ context.Context, name string) error {
	if _, err := e.Function(name); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.functions, name)
	delete(e.revisions, name)
	e.noteLocked(store.ChangeFunction, store.ActionRemove, name, name)
	e.endLocked(name)
	return nil
}

// Invoke answers by the path. /fail, /crash, /timeout, /overloaded, /closed and /broken fail
// accordingly, and /code/CODE fails with that code. /status/N answers with status N. /stream echoes
// the body line by line as the lines arrive. Every other path answers with the event as JSON, and
// with one header of each kind that the server must drop.
func (e *Engine) Invoke(ctx context.Context, name string, r *engine.Request) (*engine.Response, error) {
	if _, err := e.Function(name); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.calls++
	id := "inv" + strconv.Itoa(e.calls)
	name, _, _ = strings.Cut(name, "@")
	e.functions[name].Invocations++
	e.logLocked(name, r.Method+" "+r.Path)
	e.mu.Unlock()
	resp := &engine.Response{ID: id, Status: 200, Size: -1, Cold: true, Start: 1500 * time.Microsecond, Instance: "box1"}
	body := r.Body
	if body == nil {
		body = strings.NewReader("")
	}
	if code, ok := strings.CutPrefix(r.Path, "/status/"); ok {
		resp.Status, _ = strconv.Atoi(code)
	}
	if code, ok := strings.CutPrefix(r.Path, "/code/"); ok {
		return nil, failure.New(failure.Code(code), "the reason", "")
	}
	switch r.Path {
	case "/fail":
		return nil, &engine.FunctionError{Type: "ValueError", Message: "no such colour", Stack: "secret stack"}
	case "/left-out":
		if f, err := e.Function(name); err == nil && strings.HasSuffix(f.ImageRef, image.SlimSuffix) {
			return nil, &engine.FunctionError{Type: "ImportError", Message: "unused.so"}
		}
	case "/crash":
		return nil, &engine.CrashError{Status: sandbox.ExitStatus{Code: -1, Signal: 9}, Reason: "was killed by SIGKILL before it answered"}
	case "/timeout":
		return nil, engine.ErrTimeout
	case "/overloaded":
		return nil, engine.ErrOverloaded
	case "/closed":
		return nil, engine.ErrClosed
	case "/broken":
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("half"), failingReader{}))
		return resp, nil
	case "/hang":
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case "/stream":
		pr, pw := io.Pipe()
		go func() {
			for in := bufio.NewReader(body); ; {
				line, err := in.ReadString('\n')
				if len(line) > 0 {
					_, _ = fmt.Fprint(pw, "echo ", line)
				}
				if err != nil {
					pw.CloseWithError(err)
					return
				}
			}
		}()
		resp.Body = pr
		return resp, nil
	}
	content, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}
	header := slices.Clone(r.Headers)
	answer := append(encode(map[string]any{"method": r.Method, "path": r.Path, "query": r.Query, "header": header, "body": string(content)}), '\n')
	resp.Header = [][2]string{{"content-type", "application/json"}, {"x-fre-id", "forged"}, {"connection", "close"}, {"content-length", "1"}, {"x-own", "yes"}}
	resp.Size, resp.Body = int64(len(answer)), io.NopCloser(bytes.NewReader(answer))
	return resp, nil
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, &engine.CrashError{Reason: "died"} }

// logLocked adds a line and wakes followers.
func (e *Engine) logLocked(name, text string) {
	n := len(e.logs[name])
	e.logs[name] = append(e.logs[name], live.LogLine{Time: Epoch.Add(time.Duration(n) * time.Second), Function: name, Sandbox: "box1", Stream: "stdout", Text: text})
	e.wakeLocked()
}

// Logs emits the lines written by Deploy and Invoke.
func (e *Engine) Logs(ctx context.Context, name string, o live.LogOptions, emit func(live.LogLine) error) error {
	if _, err := e.Function(name); err != nil {
		if _, other := e.Container(name); other != nil {
			return err
		}
	}
	next := 0
	for first := true; ; first = false {
		e.mu.Lock()
		lines, more := slices.Clone(e.logs[name]), e.more
		e.mu.Unlock()
		if first && o.Tail >= 0 {
			next = max(0, len(lines)-o.Tail)
		}
		for ; next < len(lines); next++ {
			if lines[next].Time.Before(o.Since) {
				continue
			}
			if err := emit(lines[next]); err != nil {
				return err
			}
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}
