package python

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

// Files with a project's dependencies: the standard's (PEP 621), and uv's lock beside it.
const (
	projectFile = "pyproject.toml"
	projectLock = "uv.lock"
)

//go:embed project.py
var projectProgram []byte

// project is the output of project.py for a pyproject.toml.
type project struct {
	Dependencies []string `json:"dependencies"`
	Error        string   `json:"error"` // reason for missing dependencies
}

// isProject reports whether the file of requests is a project's.
func isProject(file string) bool {
	return path.Base(file) == projectFile || path.Base(file) == projectLock
}

// ReadRequests reads the files that a file of requirements names, and a project's lock. It
// implements image.RequestReader.
func (Site) ReadRequests(r *template.Requests, read func(string) ([]byte, error)) error {
	switch path.Base(r.File) {
	case projectFile:
		_, err := read(path.Join(path.Dir(r.File), projectLock))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	case projectLock:
		_, err := read(path.Join(path.Dir(r.File), projectFile))
		return err
	}
	_, err := requestOf(r.File, r.Text, read)
	return err
}

// requests gathers the template's requests.
func (s *site) requests(ctx context.Context, r *template.Requests) (*request, error) {
	q, err := s.gather(ctx, r)
	var exit *image.ExitError
	if err != nil && !errors.As(err, &exit) && ctx.Err() == nil {
		return nil, &template.FieldError{Field: "packages.pip", Message: err.Error()}
	}
	return q, err
}

func (s *site) gather(ctx context.Context, r *template.Requests) (*request, error) {
	if !isProject(r.File) {
		name, text := r.File, r.Text
		if name == "" {
			name, text = "packages.pip", []byte(strings.Join(r.List, "\n"))
		}
		return requestOf(name, text, beside(r))
	}
	files := map[string][]byte{path.Base(r.File): r.Text}
	for name, text := range r.Beside {
		files[path.Base(name)] = text
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	for name, text := range files {
		if err := b.Write(name, text); err != nil {
			return nil, err
		}
	}
	if files[projectLock] != nil {
		return s.exported(ctx, b, r)
	}
	p, err := s.project(ctx, b, r)
	if err != nil {
		return nil, err
	}
	var q request
	for _, text := range p.Dependencies {
		one, err := requestOf(r.File, []byte(strings.ReplaceAll(text, "\n", " ")), beside(r))
		if err != nil {
			return nil, err
		}
		q.list = append(q.list, one.list...)
	}
	return &q, nil
}

// beside returns the function that reads the files beside the file of requests.
func beside(r *template.Requests) func(name string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if text, ok := r.Beside[name]; ok {
			return text, nil
		}
		return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
}

// project reads the pyproject.toml at the bench by the base's Python.
func (s *site) project(ctx context.Context, b *install.Bench, r *template.Requests) (p project, err error) {
	if err := b.Write("project.py", projectProgram); err != nil {
		return p, err
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Args: append([]string{s.python, "-I", "/work/project.py", "/work/project.json"}, r.Extras...),
	})
	if err != nil {
		return p, fmt.Errorf("read %s: %w", r.File, install.Failed(err, "", words))
	}
	out, err := b.Read("project.json")
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return p, fmt.Errorf("read %s: %w", r.File, err)
	}
	if p.Error != "" {
		return p, fmt.Errorf("%s: %s", r.File, p.Error)
	}
	return p, nil
}

// stale matches uv's messages that the lock is out of date.
var stale = regexp.MustCompile(`needs to be updated|No solution found|network was disabled`)

// exported returns the packages that uv's lock pins, after uv has checked that the lock is the
// project's. Without a network uv ignores the index that the lock was made with.
func (s *site) exported(ctx context.Context, b *install.Bench, r *template.Requests) (*request, error) {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return nil, err
	}
	args := []string{
		"/function/uv", "export", "--quiet", "--locked", "--offline", "--no-default-groups", "--no-emit-project", "--no-emit-workspace",
		"--no-header", "--no-annotate", "--format", "requirements.txt", "--python", s.python, "--output-file", "/work/requirements.txt",
	}
	for _, e := range r.Extras {
		args = append(args, "--extra", e)
	}
	words, err := b.Run(ctx, install.Tool{
		Rootfs: s.step.Rootfs, Program: program, Args: args,
		Env: []string{"UV_CACHE_DIR=" + install.Private, "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never", "NO_COLOR=1"},
	})
	if err != nil {
		words = strings.Join(install.Lines(words, func(string) bool { return false }, "error: "), "\n")
		switch {
		case stale.MatchString(words):
			words = projectLock + " does not answer " + projectFile + " any more: run uv lock"
		case words != "":
			words = projectLock + ": " + words
		}
		return nil, install.Failed(err, "packages.pip", words)
	}
	out, err := b.Read("requirements.txt")
	if err != nil {
		return nil, fmt.Errorf("uv export: %w", err)
	}
	q, err := requestOf(projectLock, out, func(name string) ([]byte, error) { return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist) })
	if err == nil {
		q.complete = true
	}
	return q, err
}
