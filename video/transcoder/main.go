// Command transcoder is the function that transcodes videos for fre-video, in a sandbox. It
// stores sources in its tenant's /work and answers with the results:
//
//	PUT    /sources/NAME?offset=N&size=ALL   writes the body at the offset; answers {"size": end of the part};
//	                                         409 if a part before is missing
//	GET    /sources/NAME                     {"size": bytes} of a complete source, else 404
//	GET    /sources/                         list of all names
//	DELETE /sources/NAME
//	POST   /probe media.Probe       media.Source
//	POST   /chunk media.Chunk       media.Chunked and the rungs' bytes
//	POST   /sound media.Sound       media.Made and its bytes
//	POST   /thumbs media.Thumbs     media.Sheets and the sheets
//	POST   /text media.Text         WebVTT
//
// The program links Debian's FFmpeg libraries. Therefore the whole program is under the GPL.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/fre-engine/fre/function"
	"github.com/fre-engine/fre/internal/linux"
	"github.com/fre-engine/fre/video/media"
	"github.com/fre-engine/fre/video/transcode"
)

// sources is the directory of the sources.
const sources = "/work/sources"

func main() { function.Handle(handle) }

func handle(_ context.Context, e function.Event) (any, error) {
	path, _, _ := strings.Cut(e.Path, "?")
	if name, ok := strings.CutPrefix(path, "/sources/"); ok {
		return file(e, name)
	}
	switch e.Method + " " + path {
	case "POST /probe":
		var q media.Probe
		return asked(e, &q, &q.Source, func(path string) (any, error) { return transcode.Probe(path, q.Most) })
	case "POST /chunk":
		var q media.Chunk
		return asked(e, &q, &q.Source, func(path string) (any, error) {
			return answer(transcode.Chunk(path, q))
		})
	case "POST /sound":
		var q media.Sound
		return asked(e, &q, &q.Source, func(path string) (any, error) {
			return answer(transcode.Sound(path, q))
		})
	case "POST /thumbs":
		var q media.Thumbs
		return asked(e, &q, &q.Source, func(path string) (any, error) {
			return answer(transcode.Thumbs(path, q))
		})
	case "POST /text":
		var q media.Text
		return asked(e, &q, &q.Source, func(path string) (any, error) {
			text, err := transcode.Text(path, q)
			if err != nil {
				return nil, err
			}
			return function.Response{Header: function.Header{{"content-type", "text/vtt; charset=utf-8"}}, Body: text}, nil
		})
	}
	return function.Response{Status: 404, Body: "there is no " + e.Method + " " + path}, nil
}

// asked decodes a question about a source and answers with do's result. An error of do is status
// 422.
func asked(e function.Event, question any, name *string, do func(path string) (any, error)) (any, error) {
	if err := e.JSON(question); err != nil {
		return refused(400, err)
	}
	path, err := source(*name)
	if err != nil {
		return refused(400, err)
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return refused(404, fmt.Errorf("there is no source %s", *name))
	}
	a, err := do(path)
	if err != nil {
		return refused(422, err)
	}
	return a, nil
}

// refused answers with an error. Paths of sources become their names.
func refused(status int, err error) (any, error) {
	return function.Response{Status: status, Body: strings.ReplaceAll(err.Error(), sources+"/", "")}, nil
}

// answer writes the result of a job: the head as JSON, a line feed, and the bodies.
func answer(head any, bodies [][]byte, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	all := []io.Reader{bytes.NewReader(append(b, '\n'))}
	for _, body := range bodies {
		all = append(all, bytes.NewReader(body))
	}
	return io.MultiReader(all...), nil
}

// source returns the path of a source. Names consist of letters, digits and - _ . and do not
// begin with a dot.
func source(name string) (string, error) {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_."
	bad := func(r rune) bool { return !strings.ContainsRune(letters, r) }
	if name == "" || len(name) > 128 || name[0] == '.' || strings.ContainsFunc(name, bad) {
		return "", fmt.Errorf("source %q is no name of one", name)
	}
	return filepath.Join(sources, name), nil
}

func file(e function.Event, name string) (any, error) {
	if e.Method == "GET" && name == "" {
		return list()
	}
	path, err := source(name)
	if err != nil {
		return refused(400, err)
	}
	switch e.Method {
	case "GET":
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return refused(404, fmt.Errorf("there is no source %s", name))
		}
		if err != nil {
			return nil, err
		}
		return size(info.Size()), nil
	case "DELETE":
		return nil, remove(path)
	case "PUT":
		return put(e, path)
	}
	return function.Response{Status: 405, Body: "GET, PUT or DELETE"}, nil
}

// remove removes a source, whole or begun.
func remove(path string) error {
	for _, p := range []string{path + partial, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// put writes the body as a part of a source.
func put(e function.Event, path string) (any, error) {
	offset, err := strconv.ParseInt(e.Query().Get("offset"), 10, 64)
	all, err2 := strconv.ParseInt(e.Query().Get("size"), 10, 64)
	if err != nil || err2 != nil || offset < 0 || all < offset {
		return refused(400, fmt.Errorf("offset %q and size %q are not numbers of bytes", e.Query().Get("offset"), e.Query().Get("size")))
	}
	n, err := write(path, offset, all, e.Body)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return function.Response{Status: 507, Body: "there is no room for the source: " + err.Error()}, nil
	}
	if errors.Is(err, errMissing) {
		return refused(409, err)
	}
	if err != nil {
		return nil, err
	}
	return size(n), nil
}

func size(n int64) any { return map[string]int64{"size": n} }

// list returns the names of all sources, complete or not.
func list() (any, error) {
	entries, err := os.ReadDir(sources)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), partial))
	}
	return names, nil
}

// partial is the suffix of an incomplete source.
const partial = ".part"

// roomPiece is the number of bytes written between two checks of the disk's room.
const roomPiece = 1 << 20

// errMissing reports that an earlier part of a source is missing.
var errMissing = errors.New("the parts before this one are not there: give the source again from offset 0")

// write writes a part of a source of all bytes and returns the part's end. The part at 0 begins
// the source. The others must follow in order, without holes, else the error is errMissing. The
// last part syncs the source and gives it its name. If only the disk's reserve is left, the error
// is ENOSPC.
func write(path string, offset, all int64, body io.Reader) (end int64, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, err
	}
	mode := os.O_WRONLY
	if offset == 0 {
		mode |= os.O_CREATE
	}
	f, err := os.OpenFile(path+partial, mode, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, errMissing
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := f.Stat(); err != nil || info.Size() < offset {
		return 0, cmp.Or(err, errMissing)
	}
	end, err = fill(f, offset, all, body)
	if errors.Is(err, io.EOF) { // the body has ended; more parts follow
		return end, nil
	}
	if err != nil {
		return end, err
	}
	if err := errors.Join(f.Truncate(all), f.Sync()); err != nil {
		return 0, err
	}
	return end, os.Rename(path+partial, path)
}

// fill copies the body to a file from an offset up to byte all, while the disk has room. If the body
// ends early the error is io.EOF.
func fill(f *os.File, offset, all int64, body io.Reader) (end int64, err error) {
	end = offset
	for to := io.NewOffsetWriter(f, offset); end < all && err == nil; {
		piece := min(all-end, roomPiece)
		if err = linux.HasRoom(filepath.Dir(f.Name()), piece); err == nil {
			piece, err = io.CopyN(to, body, piece)
			end += piece
		}
	}
	return end, err
}
