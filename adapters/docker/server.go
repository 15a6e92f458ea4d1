package docker

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/moby/moby/api/types/common"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/store"
)

type server struct {
	cfg    Config
	engine *engine.Engine
	log    *slog.Logger
	host   host
	images *imageLists
	layers sync.Map          // diff ids by image digest (diffIDs)
	boxes  [2]*containerRows // index: whether the rows include ended sandboxes
}

// fail sends err in Docker's error format.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, message := statusOf(err)
	if status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "docker request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	_ = reply(w, status, common.ErrorResponse{Message: message})
}

// containers returns the running containers, newest first; with all also the ended ones.
func (s *server) containers(all bool) []shownContainer {
	boxes := s.engine.Sandboxes(all)
	out := make([]shownContainer, len(boxes))
	for i, b := range boxes {
		out[i] = containerOf(b)
	}
	return out
}

// container returns the container with the given id, name or id prefix, in its current state.
func (s *server) container(ref string) (shownContainer, error) {
	ref = strings.TrimPrefix(ref, "/")
	var begin []*live.Sandbox
	for _, b := range s.engine.Sandboxes(true) {
		if b.ID == ref || isNamed(b, ref) {
			begin = []*live.Sandbox{b}
			break
		}
		if ref != "" && strings.HasPrefix(b.ID, ref) {
			begin = append(begin, b)
		}
	}
	switch len(begin) {
	case 0:
		return shownContainer{}, notFound("No such container: %s", ref)
	case 1:
	default:
		return shownContainer{}, badRequest("multiple IDs found with provided prefix: %s: %s and %s", ref, begin[0].ID, begin[1].ID)
	}
	c := containerOf(begin[0])
	if c.record == nil {
		return c, nil
	}
	record, err := s.engine.Container(c.ID)
	if errors.Is(err, fs.ErrNotExist) {
		return shownContainer{}, notFound("No such container: %s", ref) // removed since the listing
	}
	if err != nil {
		return shownContainer{}, err
	}
	c.record, c.exit, c.started, c.finished = record, cmp.Or(record.Exit, c.exit), record.Started, record.Finished
	return c, nil
}

// live returns a running container.
func (s *server) live(ref string) (shownContainer, error) {
	c, err := s.container(ref)
	if err == nil && !c.running() {
		err = conflict("container %s is not running", c.ID)
	}
	return c, err
}

// sizes returns the bytes that a container has written, without and with the bytes of the image.
func (s *server) sizes(c shownContainer) (written, whole int64) {
	switch {
	case c.record != nil:
		if used, err := s.engine.ContainerScratch(c.ID); err == nil { // else removed
			written = used.Bytes
		}
	case c.running():
		if size, err := s.engine.Size(c.Sandbox); err == nil { // else ended
			written = size.Bytes
		}
	}
	whole = written
	if img, err := s.engine.Image(string(c.Digest)); err == nil {
		whole += img.Size
	}
	return written, whole
}

// image returns the image for a client's reference.
func (s *server) image(name string) (*store.Image, error) {
	img, err := s.engine.Image(oci.Familiar(name))
	if err != nil {
		return nil, noImage(name, err)
	}
	return img, nil
}

// host holds the constant properties of this machine.
type host struct {
	kernel, arch, name, os, cgroup string
	memory                         int64
}

func thisHost() host {
	h := host{arch: runtime.GOARCH, os: "Linux", cgroup: "1"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.kernel, h.name = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Nodename[:])
	}
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
			if name, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
				h.os = strings.Trim(name, `"`)
			}
		}
	}
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		h.cgroup = "2"
	}
	h.memory, _ = sandbox.HostMemory() // 0 if unreadable
	return h
}
