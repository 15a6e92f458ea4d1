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
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/video/asset"
)

// function is the transcoder, deployed on an engine.
type function struct {
	engine *client.Client
	name   string
	files  func(dir string) error // writes the template directory
	lock   string                 // file that keeps what was resolved for it; "": none
	log    *slog.Logger

	mu       sync.Mutex
	deployed bool // in this process's time, as far as it knows
}

// errNoSource is that the function does not have a source.
var errNoSource = errors.New("the transcoder does not have the source")

// refusedError is what the function says to a source that it can do nothing with: the
// decoder's words. It would say the same again.
type refusedError struct{ words string }

func (e *refusedError) Error() string { return e.words }

// brokenError is that the function has crashed over a source, or has not answered in time: it
// may do better another time.
type brokenError struct{ words string }

func (e *brokenError) Error() string { return e.words }

// lost are the words of a function that has refused a job, crashed or hung: the source is to
// blame, not the engine, nor a disk. "" for other errors.
func lost(err error) string {
	var refused *refusedError
	var broken *brokenError
	switch {
	case errors.As(err, &refused):
		return refused.words
	case errors.As(err, &broken):
		return broken.words
	}
	return ""
}

// awayError is an engine that cannot be asked now, through no fault of what was asked.
type awayError struct{ error }

func (e *awayError) Unwrap() error { return e.error }

// deploy deploys the function unless it is there.
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
	defer func() { _ = os.RemoveAll(dir) }() // below the directory for what is temporary
	if err := f.files(dir); err != nil {
		return err
	}
	locked, err := f.locked(dir)
	if err != nil {
		return err
	}
	f.log.InfoContext(ctx, "deploying the transcoder", "function", f.name, "locked", locked)
	deploy := func() (*client.Built, error) {
		return f.engine.DeployDir(ctx, dir, api.DeployRequest{Name: f.name, Replace: true}, nil, func(api.Event) {})
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

// locked puts the lock beside the template, if one is kept.
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

// keepLock keeps a lock that is not kept yet.
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

// away tells errors of the engine's state from others.
func away(err error) error {
	var wire *api.Error
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return &awayError{err}
	case errors.As(err, &wire):
		if wire.Code == api.CodeClosed || wire.Code == api.CodeOverloaded || wire.Code == api.CodePackageSite || wire.Code == api.CodeInsufficientDisk {
			return &awayError{err}
		}
	}
	return err
}

// ask has the function answer an event; the caller closes the body of its 200.
func (f *function) ask(ctx context.Context, e client.Event) (io.ReadCloser, error) {
	if err := f.deploy(ctx); err != nil {
		return nil, err
	}
	r, err := f.engine.Invoke(ctx, f.name, e)
	if err != nil {
		var wire *api.Error
		if errors.As(err, &wire) && wire.Code == api.CodeNotFound { // somebody has removed it
			f.mu.Lock()
			f.deployed = false
			f.mu.Unlock()
			return nil, &awayError{err}
		}
		if wire != nil && (wire.Code == api.CodeCrash || wire.Code == api.CodeFunction || wire.Code == api.CodeTimeout) {
			return nil, &brokenError{wire.Message}
		}
		return nil, away(err)
	}
	if r.StatusCode == http.StatusOK || r.StatusCode == http.StatusNoContent {
		return r.Body, nil
	}
	defer r.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(r.Body, 4<<10)) // of a message that breaks off, what there is
	words := strings.TrimSpace(string(b))
	switch r.StatusCode {
	case http.StatusUnprocessableEntity:
		return nil, &refusedError{words}
	case http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s", errNoSource, words)
	case http.StatusInsufficientStorage:
		return nil, &awayError{errors.New(words)}
	}
	var told api.ErrorBody
	if json.Unmarshal(b, &told) == nil && told.Error != nil {
		words = told.Error.Message
	}
	return nil, &brokenError{fmt.Sprintf("the transcoder answered %s: %s", r.Status, words)}
}

// askJSON asks with question as JSON. head, unless nil, is what the answer begins with, up to a
// line feed, or all of it; rest reads what follows, and is closed by the caller.
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

// mostHead is how long the head of an answer may be, in bytes: the longest are those of sound,
// with seven for each four seconds, and of a source, with all of its streams' titles.
const mostHead = 1 << 20

// readLine reads to the line feed, which is with it, or to the end.
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

// pieceBytes is how much of a source is given to the function at a time.
const pieceBytes = 32 << 20

// give gives the function a source, unless it has it.
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

// take takes a source away from the function, if it has it.
func (f *function) take(ctx context.Context, name string) error {
	body, err := f.ask(ctx, client.Event{Method: http.MethodDelete, Path: "/sources/" + name})
	if err != nil {
		return err
	}
	return body.Close()
}

// sources are the names of those that the function has.
func (f *function) sources(ctx context.Context) (names []string, err error) {
	body, err := f.ask(ctx, client.Event{Method: http.MethodGet, Path: "/sources/"})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	err = json.NewDecoder(io.LimitReader(body, 1<<20)).Decode(&names)
	return names, err
}

// mostAnswer is how many bytes may follow the head of an answer: a sandbox has it in memory.
const mostAnswer = 2 << 30

// keep writes an answer's head and the size bytes that follow it to a file, which is whole or
// not there: the head as a line of JSON.
func (s *Service) keep(path string, head any, rest io.Reader, size int64) (err error) {
	if size < 0 || size > mostAnswer {
		return &brokenError{fmt.Sprintf("the transcoder announces %d bytes", size)}
	}
	line, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(path, func(f *os.File) error {
		_, err := f.Write(append(line, '\n'))
		if err == nil {
			err = s.copy(f, rest, size)
		}
		return err
	})
}

// write has a file written that is whole or not there.
func write(path string, fill func(*os.File) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err = errors.Join(fill(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return asset.Commit(path+".new", path)
}

// kept reads the head of what keep has written, and says where the rest begins. The error is
// fs.ErrNotExist where it has not.
func kept(path string, head any) (rest int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return int64(len(line)), json.Unmarshal(line, head)
}

// try tries until it is done, is refused, finds the disk full, or has failed three times by
// itself. For an engine that is away it waits.
func try(ctx context.Context, log *slog.Logger, do func() error) error {
	const most = 3
	wait := 100 * time.Millisecond
	for n := 1; ; {
		err := do()
		var refused *refusedError
		var gone *awayError
		switch {
		case err == nil || errors.As(err, &refused) || noRoom(err):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &gone):
			log.WarnContext(ctx, "the engine is away", "error", err)
		case n == most:
			return err
		default:
			n++
			log.WarnContext(ctx, "once more", "error", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		wait = min(2*wait, 5*time.Second)
	}
}
