package service

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/video/asset"
)

// roomPiece is the number of bytes written between two checks of the disk's room.
const roomPiece = 1 << 20

// room returns an error if the disk lacks room for bytes more bytes.
func (s *Service) room(bytes int64) error {
	if s.cfg.Room == nil {
		return nil
	}
	return s.cfg.Room(bytes)
}

// copy copies n bytes while the disk has room, between files by the kernel. If from ends early
// the error is io.EOF.
func (s *Service) copy(to io.Writer, from io.Reader, n int64) error {
	for n > 0 {
		piece := min(n, roomPiece)
		if err := s.room(piece); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, piece); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}

// keep writes the head of an answer as a line of JSON and size bytes of rest to a file. The file
// is whole or absent.
func (s *Service) keep(path string, head any, rest io.Reader, size int64) (err error) {
	if size < 0 || size > mostAnswer {
		return &brokenError{fmt.Sprintf("the transcoder announces %d bytes", size)}
	}
	line, err := json.Marshal(head)
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return write(path, func(f *os.File) error {
		_, err := f.Write(append(line, '\n'))
		if err == nil {
			err = s.copy(f, rest, size)
		}
		return err
	})
}

// kept reads the head of a file written by keep and returns the offset of the rest. Without such
// a file the error is fs.ErrNotExist.
func kept(path string, head any) (rest int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return int64(len(line)), json.Unmarshal(line, head)
}

// write creates a file with the bytes written by fill. The file is whole or absent.
func write(path string, fill func(*os.File) error) error {
	f, err := os.Create(path + ".new")
	if err != nil {
		return err
	}
	if err = errors.Join(fill(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return asset.Commit(path+".new", path)
}
