package unpack

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_000_000_000, 0)
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// into unpacks below a directory in an otherwise empty parent, where an escape shows, and returns
// the directory.
func into(t testing.TB, content []byte, l Limits, unpack func(*os.Root, []byte, Limits) error) (string, error) {
	t.Helper()
	parent := t.TempDir()
	dir := filepath.Join(parent, "in")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	err = unpack(root, content, l)
	entries, readErr := os.ReadDir(parent)
	if readErr != nil || len(entries) != 1 {
		t.Errorf("beside the directory: %v, %v; want nothing", entries, readErr)
	}
	return dir, err
}

func asTar(dir *os.Root, content []byte, l Limits) error {
	return Tar(context.Background(), dir, bytes.NewReader(content), l)
}

func asFile(dir *os.Root, content []byte, l Limits) error {
	return asFileOf(context.Background(), dir, content, l)
}

func asFileOf(ctx context.Context, dir *os.Root, content []byte, l Limits) error {
	f, err := os.CreateTemp("", "archive-")
	if err != nil {
		return err
	}
	defer func() { _, _ = f.Close(), os.Remove(f.Name()) }()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return File(ctx, dir, f, l)
}

// TestTar: A tar archive unpacks with modes, times, links and implied directories, without set-id
// bits.
func TestTar(t *testing.T) {
	dir, err := into(t, archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o500, ModTime: time.Unix(7, 0)},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Size: 3, Mode: 0o4755},
		tar.Header{Typeflag: tar.TypeReg, Name: "implied/g", Size: 1},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "../outside", ModTime: time.Unix(9, 0)},
		tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"},
	), Limits{1 << 20, 100}, asTar)
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		Mode  string
		MTime int64
	}
	got := map[string]entry{}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		got[name] = entry{info.Mode().String(), info.ModTime().Unix()}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]entry{
		".": {"drwxr-xr-x", 1_000_000_000}, "d": {"drwx------", 7}, "d/f": {"-rwxr-xr-x", 1_000_000_000}, "h": {"-rwxr-xr-x", 1_000_000_000},
		"implied": {"drwxr-xr-x", 0}, "implied/g": {"-rw-r--r--", 1_000_000_000}, "s": {"Lrwxrwxrwx", 9},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unpacked (-want +got):\n%s", diff)
	}
}

// TestTarRefuses: A tar archive with a hostile path, a link out, a device or too much content is
// refused.
func TestTarRefuses(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	tests := []struct {
		name    string
		headers []tar.Header
		message string
	}{
		{"absolute", []tar.Header{file("/etc/passwd")}, "absolute"},
		{"parent", []tar.Header{file("a/../../b")}, ".."},
		{"symlink then through it", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "s", Linkname: ".."}, file("s/f")}, "exists"},
		{"symlink then onto it", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "../f"}, file("s")}, "exists"},
		{"hard link out", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "../f"}}, ".."},
		{"hard link to nothing", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "f"}}, "no such file"},
		{"hard link through a symlink", []tar.Header{{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "/etc"}, {Typeflag: tar.TypeLink, Name: "h", Linkname: "s/passwd"}}, "escapes"},
		{"device", []tar.Header{{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}}, "neither"},
		{"fifo", []tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, "neither"},
		{"twice", []tar.Header{file("f"), file("f")}, "exists"},
		{"file where a directory is", []tar.Header{file("d/f"), file("d")}, "exists"},
		{"long name", []tar.Header{file(strings.Repeat("n", 300))}, "too long"},
		{"long name of a directory", []tar.Header{{Typeflag: tar.TypeDir, Name: "d/" + strings.Repeat("n", 300) + "/"}}, "name in the path too long: 300 bytes"},
		{"long path", []tar.Header{{Typeflag: tar.TypeDir, Name: strings.Repeat("a/", 100_000)}}, "path too long: 200000 bytes"},
		{"long path of a hard link", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: strings.Repeat("a/", 100_000)}}, "path too long"},
		{"too many", []tar.Header{file("1"), file("2"), file("3"), file("4"), file("5"), file("6")}, "5 files"},
		{"too deep", []tar.Header{file(strings.Repeat("d/", 100) + "f")}, "5 files"},
		{"too large", []tar.Header{{Typeflag: tar.TypeReg, Name: "f", Size: 600}, {Typeflag: tar.TypeReg, Name: "g", Size: 600}}, "1000 bytes"},
		{"file as the root", []tar.Header{file(".")}, "not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := into(t, archive(t, tt.headers...), Limits{1000, 5}, asTar)
			if err == nil || !strings.Contains(err.Error(), tt.message) || !errors.Is(err, ErrArchive) && !errors.Is(err, ErrLimit) {
				t.Fatalf("unpack = %v, want an error with %q", err, tt.message)
			}
		})
	}
}

// TestTarRefusesSparse: A file that claims a gigabyte of zeros is refused before a byte is written.
func TestTarRefusesSparse(t *testing.T) {
	content := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 1, PAXRecords: map[string]string{"XXX.sparse.map": "0,1", "XXX.sparse.numblocks": "1", "XXX.sparse.size": "1000000000"}})
	content = bytes.ReplaceAll(content, []byte("XXX.sparse"), []byte("GNU.sparse")) // archive/tar does not write these records
	dir, err := into(t, content, Limits{1 << 40, 5}, asTar)
	if !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("unpack = %v, want %v of a sparse file", err, ErrArchive)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("made: %v, %v; want nothing", list, err)
	}
}

// TestTarEnds: Unpacking ends with its context, before the next file.
func TestTarEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, content := range map[string][]byte{
		"tar": archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}), "zip": zipOf(t, zipEntry{"d/", fs.ModeDir | 0o755, ""}),
	} {
		dir, err := into(t, content, Limits{1000, 5}, func(dir *os.Root, content []byte, l Limits) error { return asFileOf(ctx, dir, content, l) })
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrArchive) {
			t.Errorf("%s: %v, want %v", name, err, context.Canceled)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s made: %v, %v; want nothing", name, list, err)
		}
	}
}

func packed(t testing.TB, how string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch how {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	default:
		return content
	}
	_, err := w.Write(content)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// zipOf makes an archive of entries with these modes and contents.
func zipOf(t testing.TB, entries ...zipEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: time.Unix(1_000_000_000, 0)}
		h.SetMode(e.mode)
		f, err := w.CreateHeader(h)
		if err == nil {
			_, err = io.WriteString(f, e.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zipEntry struct {
	name    string
	mode    fs.FileMode
	content string
}

// packedByXz is the archive of TestFile, packed by xz.
const packedByXz = "/Td6WFoAAATm1rRGAgAhAQAAAAA3J5fW4Cf/AHBdADILyMAOUCcI/PcA+M95VdZZzKSdIQ2pMLqAAotEUXxSV13W8NgSzQoRk+iz5fk5al6C91awOFuyrk5twt/ioRDhqO3xeyVLKZA1V8d+rnHEEYLfR4oxdyGhZEmHGzf2mIQtweARaxy5cd7osFeC4AAAP1y8/810pzEAAYwBgFAAAEWxohaxxGf7AgAAAAAEWVo="

func xzArchive(t testing.TB) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(packedByXz)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// All common kinds of archives give the same files.
func TestFile(t *testing.T) {
	plain := archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Size: 3, Mode: 0o755}, tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "d/f"})
	for name, content := range map[string][]byte{
		"tar": plain, "tar.gz": packed(t, "gzip", plain), "tar.zst": packed(t, "zstd", plain), "tar.xz": xzArchive(t),
		"zip": zipOf(t, zipEntry{"d/", fs.ModeDir | 0o755, ""}, zipEntry{"d/f", 0o4755, "xxx"}, zipEntry{"s", fs.ModeSymlink | 0o777, "d/f"}),
	} {
		dir, err := into(t, content, Limits{1 << 20, 100}, asFile)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "s"))
		info, statErr := os.Stat(filepath.Join(dir, "d/f"))
		if err != nil || statErr != nil || string(text) != "xxx" || info.Mode() != 0o755 || info.ModTime().Unix() != 1_000_000_000 {
			t.Errorf("%s: %q, %v, %v, %v", name, text, err, info, statErr)
		}
	}
}

// TestFileRefuses: Each kind of archive with a hostile path, a link out, a device or too much
// content is refused.
func TestFileRefuses(t *testing.T) {
	file := zipEntry{"f", 0o644, "content"}
	cut := packed(t, "gzip", archive(t, tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 400}))
	encrypted := zipOf(t, file)
	encrypted[bytes.LastIndex(encrypted, []byte("PK\x01\x02"))+8] |= 1
	tests := map[string]struct {
		content []byte
		message string
	}{
		"empty":            {nil, "neither zip nor tar"},
		"text":             {[]byte("hello"), "neither zip nor tar"},
		"cut":              {cut[:len(cut)-20], "unexpected EOF"},
		"zip cut":          {zipOf(t, file)[:40], "zip"},
		"zip absolute":     {zipOf(t, zipEntry{"/f", 0o644, ""}), "absolute"},
		"zip parent":       {zipOf(t, zipEntry{"a/../../f", 0o644, ""}), ".."},
		"zip through link": {zipOf(t, zipEntry{"s", fs.ModeSymlink | 0o777, "/etc"}, zipEntry{"s/passwd", 0o644, "x"}), "exists"},
		"zip twice":        {zipOf(t, file, file), "exists"},
		"zip device":       {zipOf(t, zipEntry{"d", fs.ModeDevice | 0o644, ""}), "neither a file"},
		"zip encrypted":    {encrypted, "encrypted"},
		"zip bomb":         {zipOf(t, zipEntry{"f", 0o644, strings.Repeat("0", 1<<20)}), "1000 bytes"},
		"zip many":         {zipOf(t, zipEntry{"a/b/c/d/e/f", 0o644, ""}), "5 files"},
		"zip long list":    {zipOf(t, slices.Repeat([]zipEntry{{strings.Repeat("n", 1000), 0o644, ""}}, 300)...), "list of files is too long"},
		"long link":        {zipOf(t, zipEntry{"s", fs.ModeSymlink | 0o777, strings.Repeat("x", 5000)}), "symbolic link"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := into(t, tt.content, Limits{1000, 5}, asFile)
			if err == nil || !strings.Contains(err.Error(), tt.message) || !errors.Is(err, ErrArchive) && !errors.Is(err, ErrLimit) {
				t.Errorf("got %v, want an error with %q", err, tt.message)
			}
		})
	}
}

// checkSmall fails above the limits l, and for kinds of files that archives must not make.
func checkSmall(t *testing.T, dir string, l Limits) {
	t.Helper()
	var entries int
	var size int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		entries++
		switch info.Mode().Type() {
		case 0:
			size += info.Size()
		case fs.ModeDir, fs.ModeSymlink:
		default:
			t.Errorf("made a %s", info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The check may find one entry over the limit; the root does not count.
	if entries > l.Entries+2 || size > (l.Bytes+1)*int64(l.Entries) {
		t.Errorf("%d entries, %d bytes; limits %+v", entries, size, l)
	}
}

// FuzzTar: A tar archive unpacks within its directory and its limits, or is refused.
func FuzzTar(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Size: 3}, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "s/f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "../f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "/f"}))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, content []byte) {
		l := Limits{4096, 8}
		dir, _ := into(t, content, l, asTar)
		checkSmall(t, dir, l)
	})
}

// FuzzFile: An archive unpacks within its directory and its limits, or is refused.
func FuzzFile(f *testing.F) {
	f.Add(zipOf(f, zipEntry{"d/", fs.ModeDir | 0o755, ""}, zipEntry{"d/f", 0o4755, "xxx"}, zipEntry{"s", fs.ModeSymlink | 0o777, "d/f"}))
	f.Add(zipOf(f, zipEntry{"s", fs.ModeSymlink | 0o777, "/etc"}, zipEntry{"s/passwd", 0o644, "x"}))
	f.Add(packed(f, "gzip", archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 400})))
	f.Add(packed(f, "zstd", archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "../f", Size: 4})))
	f.Add(xzArchive(f))
	f.Fuzz(func(t *testing.T, content []byte) {
		l := Limits{4096, 8}
		dir, _ := into(t, content, l, asFile)
		checkSmall(t, dir, l)
	})
}
