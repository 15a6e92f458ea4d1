package access

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Audit calls emit for entries of the audit log, oldest first: the newest entries of all files and,
// with Follow, each entry written later, without gaps or repetitions. Lines torn by a crash are
// skipped. Errors: emit's, and ErrBehind if a follower lags by more than auditBacklog entries.
func (a *audit) Audit(ctx context.Context, o AuditOptions, emit func(Entry) error) error {
	found, w, err := a.read(ctx, &o)
	if w != nil {
		defer a.unwatch(w)
	}
	if err != nil {
		return fmt.Errorf("read audit log: %w", err)
	}
	for _, e := range found {
		if err := emit(e); err != nil {
			return err
		}
	}
	if w == nil {
		return nil
	}
	return w.follow(ctx, o.Done, emit)
}

// follow calls emit for new entries until ctx or done ends.
func (w *auditWatch) follow(ctx context.Context, done <-chan struct{}, emit func(Entry) error) error {
	for {
		select {
		case e, ok := <-w.entries:
			if !ok {
				return w.err
			}
			if err := emit(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-done:
			return nil
		}
	}
}

// read collects the existing entries. One reader works at a time, which bounds the memory.
func (a *audit) read(ctx context.Context, o *AuditOptions) (found []Entry, w *auditWatch, err error) {
	if o.Tail < 0 || o.Tail > MaxAuditTail {
		return nil, nil, fmt.Errorf("%w: %d entries: at most %d", ErrInvalid, o.Tail, MaxAuditTail)
	}
	select {
	case a.reading <- struct{}{}:
		defer func() { <-a.reading }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	files, w, err := a.snapshot(o)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if o.Tail > 0 && err == nil {
			err = readEntries(ctx, f, func(e *Entry) {
				if o.wants(e) {
					found = o.append(found, e)
				}
			})
		}
		err = errors.Join(err, f.file.Close())
	}
	return slices.Clone(found[max(0, len(found)-o.Tail):]), w, err
}

// auditFile is a file of the log, and its size when opened.
type auditFile struct {
	file *os.File
	size int64
}

// snapshot opens the files, oldest first, and starts o's watch where they end. A later rotation
// does not affect the open files.
func (a *audit) snapshot(o *AuditOptions) (files []auditFile, w *auditWatch, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, nil, os.ErrClosed
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.file.Close()
			}
		}
	}()
	for i := a.files; i >= 0; i-- {
		f, err := os.Open(a.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return files, nil, err
		}
		files = append(files, auditFile{file: f})
		info, err := f.Stat()
		if err != nil {
			return files, nil, err
		}
		files[len(files)-1].size = info.Size()
	}
	if o.Follow {
		w = &auditWatch{o: o, entries: make(chan Entry, auditBacklog)}
		a.watches[w] = struct{}{}
	}
	return files, w, nil
}

// append adds an entry to at most twice the wanted number, of which the older half goes.
func (o *AuditOptions) append(found []Entry, e *Entry) []Entry {
	if len(found) == 2*o.Tail {
		found = found[:copy(found, found[o.Tail:])]
	}
	return append(found, *e)
}

// readEntries calls take for each line that is an entry.
func readEntries(ctx context.Context, f auditFile, take func(*Entry)) error {
	in := bufio.NewReaderSize(io.NewSectionReader(f.file, 0, f.size), auditLine)
	for rest := false; ; {
		line, err := in.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !long && !errors.Is(err, io.EOF) {
			return err
		}
		var e Entry
		if !rest && !long && json.Unmarshal(line, &e) == nil && e.Action != "" {
			take(&e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rest = long
	}
}
