package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/fre-engine/fre/internal/bom"
	"github.com/fre-engine/fre/template"
)

var errIrregular = errors.New("not a regular file")

// openRegular opens the regular file name below dir. Because the file may be replaced meanwhile,
// openRegular opens it without waiting for a FIFO's other end, and checks the type afterwards.
// Errors: errIrregular.
func openRegular(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errIrregular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// readSmall reads a regular file of at most most bytes below dir. Errors: fs.ErrNotExist;
// [template.Errors].
func readSmall(dir *os.Root, name string, most int64) ([]byte, error) {
	f, err := openRegular(dir, name)
	if err != nil {
		return nil, FileFault(name, err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(src)) > most {
		return nil, template.Errors{{File: name, Message: "the file has more than " + template.FormatBytes(most)}}
	}
	return bom.Decode(src), nil
}

// FileFault returns the error for an unreadable file beside the template or in the code. The error
// is [template.Errors], unless the file does not exist (fs.ErrNotExist) or the engine's host is at
// fault.
func FileFault(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || ofHost(err) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return template.Errors{{File: name, Message: whyUnread(err)}}
}

// whyUnread returns the reason why a file cannot be read, and the next step.
func whyUnread(err error) string {
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		err = of.Err
	}
	return fmt.Sprintf("%s: use a regular file, or a link to a regular file below the template's directory", err)
}

// sourceWriter is a debian.Writer on a private directory of a build. The build step's user, unknown
// to the host, may write everywhere in the directory. Entries must come sorted by path, so that
// equal code gives an equal sum.
type sourceWriter struct {
	root *os.Root
	sum  hash.Hash
}

// File implements debian.Writer.
func (w *sourceWriter) File(p string, mode fs.FileMode, mtime time.Time, r io.Reader) error {
	f, err := w.root.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	content := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, content), r)
	if err = errors.Join(err, f.Chmod(mode|0o666), f.Close()); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w.sum, "file %q %o %x\n", p, mode, content.Sum(nil))
	return w.root.Chtimes(p, mtime, mtime)
}

// Directory implements debian.Writer.
func (w *sourceWriter) Directory(p string, mode fs.FileMode, _ time.Time) error {
	_, _ = fmt.Fprintf(w.sum, "directory %q\n", p)
	return errors.Join(w.root.Mkdir(p, mode), w.root.Chmod(p, 0o777))
}

// Symlink implements debian.Writer.
func (w *sourceWriter) Symlink(p, target string, _ time.Time) error {
	_, _ = fmt.Fprintf(w.sum, "symlink %q %q\n", p, target)
	return w.root.Symlink(target, p)
}
