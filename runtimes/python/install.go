package python

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// install makes the parts of the packages with the indexes missing. It compiles and stores finished
// packages during the download of the rest.
func (s *site) install(ctx context.Context, packages []image.LockedPackage, parts []store.Part, missing []int) error {
	program, err := uv.Fetch(ctx, s.step, s.tools)
	if err != nil {
		return err
	}
	b, err := install.NewBench(s.step)
	if err != nil {
		return err
	}
	var jobs []installJob
	for _, i := range missing {
		job, err := s.installJob(b, packages[i], i)
		if err != nil {
			return err
		}
		jobs = append(jobs, job)
	}
	s.step.Report(image.Progress{Step: "packages", Message: "install"})
	var (
		group, running = errgroup.WithContext(ctx)
		installed      = make(chan int, len(missing))
	)
	group.Go(func() error {
		defer close(installed)
		waiting := slices.Clone(missing)
		words, err := run(running, b, install.Tool{
			Rootfs: s.step.Rootfs, Env: s.env(install.Private), Program: program, Network: true,
			Said: func(line string) { // the number of a job, once
				if n, err := strconv.Atoi(line); err == nil && n >= 0 && n < len(waiting) && waiting[n] >= 0 {
					installed <- waiting[n]
					waiting[n] = -1
				}
			},
		}, "install", jobs)
		if err == nil && slices.ContainsFunc(waiting, func(i int) bool { return i >= 0 }) {
			err = errors.New("uv pip install: ended early")
		}
		return failed(err, words)
	})
	group.Go(func() error { return s.store(running, b, packages, parts, installed) })
	return group.Wait()
}

// installJob is a job of work.py's install.
type installJob struct {
	Dir          string `json:"dir"`
	Requirements string `json:"requirements"`
	Index        string `json:"index"` // URL of the index to look into first, or ""
}

// installJob prepares the bench for the installation of the package with index i.
func (s *site) installJob(b *install.Bench, p image.LockedPackage, i int) (installJob, error) {
	dir, name := outDir(i), fmt.Sprintf("requirements-%d.txt", i)
	if err := errors.Join(b.Mkdir(dir), b.Write(name, []byte(pinnedLine(p)))); err != nil {
		return installJob{}, err
	}
	index, err := s.indexOf(p.Name)
	return installJob{"/work/" + dir, "/work/" + name, index}, err
}

// store compiles packages and makes their parts, until installed is closed. Each pass takes all
// indexes that installed holds.
func (s *site) store(ctx context.Context, b *install.Bench, packages []image.LockedPackage, parts []store.Part, installed <-chan int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU())
	for batch := next(installed); len(batch) > 0; batch = next(installed) {
		var jobs []compileJob
		for _, i := range batch {
			jobs = append(jobs, compileJob{Root: "/work/" + outDir(i), Place: "/" + prefix})
		}
		if err := compile(ctx, b, s.step.Rootfs, jobs); err != nil {
			return cmp.Or(group.Wait(), err) // group's error may be the cause of err
		}
		for _, i := range batch {
			group.Go(func() (err error) {
				p := packages[i]
				part := store.Part{Kind: "pip", Name: p.Name, Version: p.Version, Prefix: prefix, Hash: verifiedBy(b, p)}
				if parts[i], err = b.Put(ctx, s.key(p), part, outDir(i), skip); err != nil {
					return install.Unpacked(err, "pip", p.Name+" "+p.Version)
				}
				s.step.Report(image.Progress{Step: "packages", Name: p.Name + " " + p.Version, End: true})
				return nil
			})
		}
	}
	return group.Wait()
}

// verifiedBy returns the locked hash that the installed file has. uv notes the verified hash in its
// cache (uv-client's DataWithCachePolicy):
//
//	[MessagePack: an id, hashes, the file's name][the answer's headers][their length, 8 bytes, little-endian]
//
// The result is "" if the hash is ambiguous.
func verifiedBy(b *install.Bench, p image.LockedPackage) string {
	if len(p.Hashes) == 1 {
		return p.Hashes[0]
	}
	cache, err := b.Open(path.Base(install.Private))
	if err != nil {
		return ""
	}
	defer func() { _ = cache.Close() }()
	var found []string
	for _, index := range []string{"pypi", "index/*"} {
		notes, _ := fs.Glob(cache.FS(), "wheels-v*/"+index+"/"+normalName(p.Name)+"/*.http") // the pattern is well-formed
		for _, note := range notes {
			text, err := readNote(cache, note)
			if err != nil {
				return ""
			}
			for _, h := range p.Hashes {
				if bytes.Contains(text, []byte(strings.TrimPrefix(h, "sha256:"))) && !slices.Contains(found, h) {
					found = append(found, h)
				}
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// maxNote is above the size of uv's notes.
const maxNote = 1 << 20

// readNote reads a file of uv's cache without the headers of the index's answer.
func readNote(cache *os.Root, name string) ([]byte, error) {
	info, err := cache.Lstat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxNote) {
		err = fmt.Errorf("%s: not a file of uv's: %w", name, fs.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	text, err := cache.ReadFile(name)
	if err != nil {
		return nil, err
	}
	note, ok := withoutHeaders(text)
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrInvalid)
	}
	return note, nil
}

func withoutHeaders(note []byte) ([]byte, bool) {
	end := len(note) - 8
	if end < 0 {
		return nil, false
	}
	headers := binary.LittleEndian.Uint64(note[end:])
	if headers > uint64(end) {
		return nil, false
	}
	return note[:end-int(headers)], true
}

// outDir is a bench's directory of the package with an index.
func outDir(i int) string { return fmt.Sprintf("out/%d", i) }

// next waits for a value and returns it with all further buffered values; an empty result means
// that c is closed.
func next(c <-chan int) (batch []int) {
	for i := range c {
		if batch = append(batch, i); len(c) == 0 {
			break
		}
	}
	return batch
}
