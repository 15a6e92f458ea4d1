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

	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/client"
)

// forgotten is after how long an upload that was begun is not gone on with: the service gives
// it up after a day.
const forgotten = 48 * time.Hour

// note remembers an upload that was begun, so that the same command goes on with it: a file
// with the asset's id, locked by whoever uploads, that is gone once all has arrived.
//
//	$XDG_STATE_HOME/fre-video/uploads/FINGERPRINT    (default ~/.local/state)
type note struct{ file *os.File }

// openNote is the note of a file's upload to a service. It is nil where there is no home to
// keep it, or another process is at the same upload.
func openNote(fingerprint ...any) *note {
	home := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(home) { // as the XDG Base Directory Specification has it
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

// lockNote opens a note that nobody else has.
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
	if err == nil && info.Nlink == 0 { // its upload has come to its end meanwhile
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &note{f}, nil
}

// forget removes notes that are too old.
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

// id is that of the asset, "" where none was begun.
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

// write notes an asset's id. One that cannot be noted is begun anew the next time.
func (n *note) write(id string) {
	if n != nil {
		_ = n.file.Truncate(0)
		_, _ = n.file.WriteAt([]byte(id), 0)
	}
}

// close leaves the note to the next command.
func (n *note) close() {
	if n != nil {
		_ = n.file.Close() // and the lock with it
	}
}

// remove takes the note away.
func (n *note) remove() {
	if n != nil {
		_ = os.Remove(n.file.Name())
		n.close()
	}
}

// uploadOnce uploads the video at a path, and returns its asset's id. It goes on with what an
// earlier command has begun, unless the file has changed since.
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
			err = &hintError{fmt.Errorf("%w: %w", context.Cause(ctx), err), "the same command goes on where this one was"}
		}
	}
	return id, err
}
