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
	"time"
)

// MaxAuditTail is how many entries are kept of a log that is read.
const MaxAuditTail = 10_000

const (
	auditLine    = 64 << 10 // bytes of a line that is read; longer ones are nobody's
	auditBacklog = 1024     // entries that one who follows may be behind
)

// ErrBehind says that entries were written faster than somebody took them.
var ErrBehind = errors.New("entries come faster than they are read")

// AuditOptions select entries of the audit log.
type AuditOptions struct {
	Since  time.Time        // zero: from the oldest on
	Tail   int              // the last ones of those that are there, MaxAuditTail at most
	Keep   func(Entry) bool // nil: all. Whoever records calls it, too: it must be quick
	Follow bool             // those that are written from now on, too, until ctx ends
	Done   <-chan struct{}  // ends following, as ctx does
}

func (o *AuditOptions) wants(e *Entry) bool {
	return !e.Time.Before(o.Since) && (o.Keep == nil || o.Keep(*e))
}

// auditWatch is somebody who follows.
type auditWatch struct {
	o       *AuditOptions
	entries chan Entry // closed when it ends
	err     error      // why, set before
}

// Audit calls emit for entries of the audit log, oldest first: those of the rotated files,
// the newest, and with Follow those that come, none twice and none left out. Lines that a
// crash has torn are passed over. It returns emit's error, and ErrBehind where a follower
// has not taken auditBacklog entries.
func (a *Access) Audit(ctx context.Context, o AuditOptions, emit func(Entry) error) error {
	found, w, err := a.audit.read(ctx, &o)
	if w != nil {
		defer a.audit.unwatch(w)
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
		case <-o.Done:
			return nil
		}
	}
}

// read finds what is there. One reads at a time, so that what they hold is bounded.
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
				if !o.wants(e) {
					return
				}
				if len(found) == 2*o.Tail { // the older half goes
					found = found[:copy(found, found[o.Tail:])]
				}
				found = append(found, *e)
			})
		}
		err = errors.Join(err, f.file.Close())
	}
	return slices.Clone(found[max(0, len(found)-o.Tail):]), w, err
}

// auditFile is a file of the log with what it held when it was opened.
type auditFile struct {
	file *os.File
	size int64
}

// snapshot opens the files, the oldest first, and has o's watch begin where they end. What
// rotates them afterwards does not matter.
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

// publishLocked tells followers of an entry, and ends those that have not taken what came
// before: whoever records waits for nobody.
func (a *audit) publishLocked(e Entry) {
	for w := range a.watches {
		if !w.o.wants(&e) {
			continue
		}
		select {
		case w.entries <- e:
		default:
			a.endLocked(w, ErrBehind)
		}
	}
}

func (a *audit) endLocked(w *auditWatch, err error) {
	if _, ok := a.watches[w]; ok {
		delete(a.watches, w)
		w.err = err
		close(w.entries)
	}
}

func (a *audit) unwatch(w *auditWatch) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endLocked(w, nil)
}
