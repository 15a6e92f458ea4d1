package service

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/video/asset"
)

// function is the transcoder, deployed on an engine.
type function struct {
	engine *client.Client
	name   string
	files  func(dir string) error // writes the template directory
	lock   string                 // file with the resolved packages; "": none
	log    *slog.Logger

	mu       sync.Mutex
	deployed bool // by this process, as far as known
}

// deploy deploys the function, once per process.
func (f *function) deploy(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deployed {
		return nil
	}
	dir, err := os.MkdirTemp("", "fre-video-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the system's temporary directory
	if err := f.files(dir); err != nil {
		return err
	}
	locked, err := f.locked(dir)
	if err != nil {
		return err
	}
	f.log.InfoContext(ctx, "deploying the transcoder", "function", f.name, "locked", locked)
	deploy := func() (*client.Built, error) {
		return f.engine.Functions().DeployDir(ctx, dir, api.DeployRequest{Name: f.name, Replace: true}, nil, func(api.Progress) {})
	}
	built, err := deploy()
	var wire *api.Error
	if locked && errors.As(err, &wire) && (wire.Code == api.CodePackage || wire.Code == api.CodeTemplate) {
		f.log.WarnContext(ctx, "the transcoder's packages are resolved anew: what is locked cannot be had", "lock", f.lock, "error", err)
		if err := os.Remove(filepath.Join(dir, api.LockFile)); err != nil {
			return err
		}
		built, err = deploy()
	}
	if err != nil {
		return fmt.Errorf("deploy the transcoder: %w", away(err))
	}
	if err := f.keepLock(built.Lock); err != nil {
		f.log.WarnContext(ctx, "what was resolved for the transcoder is not kept", "error", err)
	}
	f.log.InfoContext(ctx, "the transcoder is deployed", "function", f.name, "image", built.Image.Digest)
	f.deployed = true
	return nil
}

// locked copies the kept lock, if any, into the template directory. The result reports whether
// there is a lock.
func (f *function) locked(dir string) (bool, error) {
	if f.lock == "" {
		return false, nil
	}
	b, err := os.ReadFile(f.lock)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, os.WriteFile(filepath.Join(dir, api.LockFile), b, 0o600)
}

// keepLock stores a new lock.
func (f *function) keepLock(text []byte) error {
	if f.lock == "" || len(text) == 0 {
		return nil
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	if before, err := os.ReadFile(f.lock); err == nil && bytes.Equal(before, b.Bytes()) {
		return nil
	}
	if err := os.WriteFile(f.lock+".new", b.Bytes(), 0o600); err != nil {
		return err
	}
	return asset.Commit(f.lock+".new", f.lock)
}

// away wraps errors of the engine's state in an awayError and returns other errors unchanged.
func away(err error) error {
	var wire *api.Error
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return &awayError{err}
	case errors.As(err, &wire):
		if api.FailureOf(wire.Code).Status == http.StatusServiceUnavailable || wire.Code == api.CodePackageSite || wire.Code == api.CodeInsufficientDisk {
			return &awayError{err}
		}
	}
	return err
}

// ask invokes the function with an event. The caller closes the body of a successful answer.
func (f *function) ask(ctx context.Context, e client.Event) (io.ReadCloser, error) {
	if err := f.deploy(ctx); err != nil {
		return nil, err
	}
	r, err := f.engine.Functions().Invoke(ctx, f.name, e)
	if err != nil {
		return nil, f.failed(err)
	}
	if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusNoContent {
		return r.Body, nil
	}
	return nil, refusal(r)
}

// failed returns the error of an invocation that the engine did not answer.
func (f *function) failed(err error) error {
	var wire *api.Error
	if errors.As(err, &wire) && wire.Code == api.CodeNotFound { // the function was removed from the engine
		f.mu.Lock()
		f.deployed = false
		f.mu.Unlock()
		return &awayError{err}
	}
	if wire != nil && (wire.Code == api.CodeCrash || wire.Code == api.CodeFunction || wire.Code == api.CodeTimeout) {
		return &brokenError{wire.Message}
	}
	return away(err)
}

// refusal returns the error of an answer without success, and closes its body.
func refusal(r *http.Response) error {
	defer r.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(r.Body, 4<<10)) // an incomplete message is good enough
	words := strings.TrimSpace(string(b))
	switch r.StatusCode {
	case http.StatusUnprocessableEntity:
		return &refusedError{words}
	case http.StatusNotFound:
		return fmt.Errorf("%w: %s", errNoSource, words)
	case http.StatusInsufficientStorage:
		return &awayError{errors.New(words)}
	}
	var told api.ErrorBody
	if json.Unmarshal(b, &told) == nil && told.Error != nil {
		words = told.Error.Message
	}
	return &brokenError{fmt.Sprintf("the transcoder answered %s: %s", r.Status, words)}
}

// askJSON invokes the function with question as JSON. Unless head is nil, askJSON decodes the
// first line of the answer into head. rest is the remainder; the caller closes rest.
func (f *function) askJSON(ctx context.Context, path string, question, head any) (rest io.ReadCloser, err error) {
	b, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	body, err := f.ask(ctx, client.Event{Method: http.MethodPost, Path: path, Body: bytes.NewReader(b)})
	if err != nil {
		return nil, err
	}
	if head == nil {
		return body, nil
	}
	r := bufio.NewReaderSize(body, 64<<10)
	line, err := readLine(r)
	if err == nil || errors.Is(err, io.EOF) && len(line) > 0 {
		err = json.Unmarshal(line, head)
	}
	if err != nil {
		_ = body.Close()
		return nil, &brokenError{fmt.Sprintf("the transcoder's answer to %s: %v", path, err)}
	}
	return struct {
		io.Reader
		io.Closer
	}{r, body}, nil
}

// mostHead is the longest head of an answer, in bytes. The longest heads are those of sound, with
// seven bytes for four seconds, and of a source, with the titles of all streams.
const mostHead = 1 << 20

// readLine reads up to and including the next line feed, or to the end.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > mostHead:
			return nil, fmt.Errorf("its head has more than %d bytes", mostHead)
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// pieceBytes is the size of each piece of a source in an upload to the function.
const pieceBytes = 32 << 20

// give uploads a source to the function, unless the function has the source.
func (f *function) give(ctx context.Context, name, path string) error {
	target := "/sources/" + name
	body, err := f.ask(ctx, client.Event{Method: http.MethodGet, Path: target})
	if err == nil {
		return body.Close()
	}
	if !errors.Is(err, errNoSource) {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	for at := int64(0); ; at += pieceBytes {
		body, err := f.ask(ctx, client.Event{
			Method: http.MethodPut, Path: target, Query: url.Values{"offset": {strconv.FormatInt(at, 10)}, "size": {strconv.FormatInt(info.Size(), 10)}}.Encode(),
			Header: http.Header{"Content-Type": {"application/octet-stream"}}, Body: io.NewSectionReader(file, at, min(pieceBytes, info.Size()-at)),
		})
		if err != nil {
			return err
		}
		if err := body.Close(); err != nil {
			return err
		}
		if at+pieceBytes >= info.Size() {
			return nil
		}
	}
}

// take deletes a source from the function.
func (f *function) take(ctx context.Context, name string) error {
	body, err := f.ask(ctx, client.Event{Method: http.MethodDelete, Path: "/sources/" + name})
	if err != nil {
		return err
	}
	return body.Close()
}

// sources returns the names of the function's sources.
func (f *function) sources(ctx context.Context) (names []string, err error) {
	body, err := f.ask(ctx, client.Event{Method: http.MethodGet, Path: "/sources/"})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	err = json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&names)
	return names, err
}

// errNoSource reports that the function does not have a source.
var errNoSource = errors.New("the transcoder does not have the source")
