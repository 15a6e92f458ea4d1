package sandbox

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// startMessage collects a START, PARK or RUN message and its fds. The message owns only the fds
// in trees; the others stay with their owners.
type startMessage struct {
	header  startHeader
	args    []string
	env     []string
	dir     string
	host    string
	targets []string
	strings []byte // all strings above, after seal
	fds     []int
	trees   []int // the fds that the message owns

	// Objects from furnish, until the sandbox owns them.
	network lease
	tmp     int
	scratch *scratchLayer
	view    *procView
	userns  *os.File // the sandbox's own; nil if the tenant's
	base    uint32
	undo    []func()
}

func newStartMessage(k kind, id uint64) *startMessage {
	h := startHeader{
		Version: wireVersion, Kind: k, ID: id,
		FDPayload: -1, FDRoot: -1, FDUserns: -1, FDNetns: -1, FDStdin: -1, FDStdout: -1, FDStderr: -1,
		FDChannel: -1, FDCgroup: -1, FDMount: -1, FDControl: -1, FDReports: -1, Filter: -1,
	}
	return &startMessage{header: h, fds: make([]int, 0, 24)}
}

// addFD adds an fd and returns its index.
func (m *startMessage) addFD(fd int) int16 {
	m.fds = append(m.fds, fd)
	return int16(len(m.fds) - 1)
}

// tree adds a detached mount of path. The message owns the mount.
func (m *startMessage) tree(path string, attr uint64) (int16, error) {
	fd, err := cloneTree(path, attr)
	if err != nil {
		return -1, err
	}
	m.trees = append(m.trees, fd)
	return m.addFD(fd), nil
}

func (m *startMessage) secrets(spec *Spec, base uint32) error {
	fd, err := newSecrets(spec.Secrets, base+spec.User.UID, base+spec.User.GID)
	if err != nil {
		return err
	}
	m.trees = append(m.trees, fd)
	m.addFD(fd)
	return nil
}

// seal counts the strings and joins them.
func (m *startMessage) seal() {
	m.header.Argc, m.header.Envc, m.header.Mounts = uint32(len(m.args)), uint32(len(m.env)), uint32(len(m.targets))
	m.strings = make([]byte, 0, 1024)
	for _, list := range [][]string{m.args, m.env, {m.dir, m.host}, m.targets} {
		for _, s := range list {
			m.strings = append(m.strings, s...)
			m.strings = append(m.strings, 0)
		}
	}
}

// encode encodes the sealed message. Without inline, the strings travel in a file.
func (m *startMessage) encode(inline bool) ([]byte, error) {
	m.header.Payload = uint32(len(m.strings))
	b, err := binary.Append(make([]byte, 0, 256+len(m.strings)), binary.NativeEndian, &m.header)
	if err != nil || !inline {
		return b, err
	}
	return append(b, m.strings...), nil
}

// close releases the objects that the message owns.
func (m *startMessage) close() {
	for _, fd := range m.trees {
		unix.Close(fd)
	}
	for _, undo := range m.undo {
		undo()
	}
	m.trees, m.undo = nil, nil
}

// own moves the network, /tmp, the scratch layer, the view of /proc and the user namespace from
// the message to the sandbox. A parked sandbox may already have ended: then own returns false
// and the message keeps the objects.
func (s *Sandbox) own(m *startMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		return false
	}
	s.network, s.tmp, s.scratch, s.view, s.userns, s.base = m.network, m.tmp, m.scratch, m.view, m.userns, m.base
	m.undo = nil
	return true
}

// payloadFile returns an fd of a memory file with strings too long for one packet.
func payloadFile(b []byte) (int, error) {
	fd, err := unix.MemfdCreate("fre-start", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
		b = b[n:]
	}
	return fd, nil
}
