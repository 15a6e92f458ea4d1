package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/client"
)

// forgotten is the age at which a note is deleted. The service gives up an unfinished upload
// after a day.
const forgotten = 48 * time.Hour

// note remembers an unfinished upload, so that the same command can continue it. The note is a
// file with the asset's id, locked by the uploading process and deleted after the upload.
//
//	$XDG_STATE_HOME/fre-video/uploads/FINGERPRINT    (default ~/.local/state)
type note struct{ file *os.File }

// openNote opens the note of an upload. It returns nil if the note cannot be stored, or if
// another process has the lock. All methods accept a nil note.
func openNote(fingerprint ...any) *note {
	home := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(home) { // the XDG Base Directory Specification demands an absolute path
		user, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		home = filepath.Join(user, ".local", "state")
	}
	dir := filepath.Join(home, "fre-video", "uploads")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil
	}
	forget(dir)
	b, err := json.Marshal(fingerprint)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(b)
	n, err := lockNote(filepath.Join(dir, hex.EncodeToString(sum[:])), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil
	}
	return n
}

// lockNote opens and locks a note.
func lockNote(path string, flags int) (*note, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	var info unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(f.Fd()), &info)
	}
	if err == nil && info.Nlink == 0 { // another process has just finished this upload
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &note{f}, nil
}

// forget deletes old notes.
func forget(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < forgotten {
			continue
		}
		if n, err := lockNote(filepath.Join(dir, e.Name()), os.O_RDWR); err == nil {
			n.remove()
		}
	}
}

// id returns the asset's id, or "".
func (n *note) id() string {
	if n == nil {
		return ""
	}
	b, err := io.ReadAll(io.NewSectionReader(n.file, 0, 64))
	if err != nil || !asset.ValidID(string(b)) {
		return ""
	}
	return string(b)
}

// write stores an asset's id. If this fails, the next command starts the upload again.
func (n *note) write(id string) {
	if n != nil {
		_ = n.file.Truncate(0)
		_, _ = n.file.WriteAt([]byte(id), 0)
	}
}

// close keeps the note for the next command.
func (n *note) close() {
	if n != nil {
		_ = n.file.Close() // also releases the lock
	}
}

// remove deletes the note.
func (n *note) remove() {
	if n != nil {
		_ = os.Remove(n.file.Name())
		n.close()
	}
}

// uploadOnce uploads the video at path and returns its asset's id. It continues the upload of an
// earlier command, unless the file has changed since.
func uploadOnce(ctx context.Context, c *client.Client, path string, video client.Video, modified time.Time, report func(sent int64)) (string, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	n := openNote(os.Getenv("FRE_VIDEO_URL"), absolute, video.Name, video.Codec, video.Protection, video.Size, modified.UnixNano())
	id := n.id()
	if id != "" {
		err = c.Continue(ctx, id, video, report)
		if err == nil {
			n.remove()
			return id, nil
		}
	}
	if id == "" || errors.Is(err, client.ErrGone) {
		if id, err = c.Begin(ctx, video); err == nil {
			n.write(id)
			err = c.Continue(ctx, id, video, report)
		}
	}
	switch {
	case err == nil:
		n.remove()
	case n.id() == "":
		n.remove()
	default:
		n.close()
		if ctx.Err() != nil {
			err = failure.Hint(fmt.Errorf("%w: %w", context.Cause(ctx), err), "run the same command again: it continues this upload")
		}
	}
	return id, err
}
