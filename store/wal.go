package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// The write-ahead log after a crash (sqlite.org/fileformat2.html, section 4); numbers are
// big-endian:
//
//	header 32   magic 4 · version 4 · page size 4 · checkpoint 4 · salts 8 · sums 8
//	frame  24   page 4 · pages in the database after a commit, else 0, 4 · salts 8 · sums 8
//	page        …
//
// The sums cover all bytes before them, except sums and the salts of frames. SQLite silently
// ignores the first unsound frame, which a crash may have cut off, and all frames after it.

// checkLog finds damage that loses acknowledged transactions: an unsound frame, and at or after
// it more than one transaction. A crash has no such effect, because each transaction is on disk
// before the next begins. Errors: errCorrupt.
func checkLog(dir int, name string) error {
	f, err := openat(dir, name, unix.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var header [32]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return logEnd(err)
	}
	sum := logSum{order: binary.LittleEndian}
	if header[3]&1 != 0 {
		sum.order = binary.BigEndian
	}
	size := binary.BigEndian.Uint32(header[8:])
	sum.add(header[:24])
	sound := sum.is(header[24:])
	salts := string(header[16:24])
	if !sound {
		size, salts = 4096, "" // SQLite's default page size; salts of the first frame
	}
	frame := make([]byte, 24+int(size))
	for n, committed := 0, false; ; n++ {
		if _, err := io.ReadFull(f, frame); err != nil {
			return logEnd(err)
		}
		if salts == "" {
			salts = string(frame[8:16])
		}
		same := string(frame[8:16]) == salts // else left over from an earlier log
		if sound {
			sum.add(frame[:8])
			sum.add(frame[24:])
			sound = same && sum.is(frame[16:24])
		}
		if sound || !same {
			continue
		}
		if committed {
			return fmt.Errorf("%w: the log is damaged before frame %d", errCorrupt, n)
		}
		committed = binary.BigEndian.Uint32(frame[4:]) != 0
	}
}

// logEnd returns nil if err is the end of the log.
func logEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

type logSum struct {
	order  binary.ByteOrder
	s0, s1 uint32
}

func (s *logSum) add(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		s.s0 += s.order.Uint32(b) + s.s1
		s.s1 += s.order.Uint32(b[4:]) + s.s0
	}
}

func (s *logSum) is(b []byte) bool {
	return s.s0 == binary.BigEndian.Uint32(b) && s.s1 == binary.BigEndian.Uint32(b[4:])
}
