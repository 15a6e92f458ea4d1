package server

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// into unpacks below a directory whose parent holds nothing else, so that
// escapes show, and returns that directory.
func into(t testing.TB, content []byte, maxBytes int64, maxEntries int) (string, error) {
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
	err = unpack(root, bytes.NewReader(content), maxBytes, maxEntries)
	entries, readErr := os.ReadDir(parent)
	if readErr != nil || len(entries) != 1 {
		t.Errorf("beside the directory: %v, %v; want nothing", entries, readErr)
	}
	return dir, err
}

func TestUnpack(t *testing.T) {
	dir, err := into(t, archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o500, ModTime: time.Unix(7, 0)},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Size: 3, Mode: 0o4755},
		tar.Header{Typeflag: tar.TypeReg, Name: "implied/g", Size: 1},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: "../outside", ModTime: time.Unix(9, 0)},
		tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"},
	), 1<<20, 100)
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

func TestUnpackRefuses(t *testing.T) {
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
		{"too many", []tar.Header{file("1"), file("2"), file("3"), file("4"), file("5"), file("6")}, "5 files"},
		{"too deep", []tar.Header{file(strings.Repeat("d/", 100) + "f")}, "5 files"},
		{"too large", []tar.Header{{Typeflag: tar.TypeReg, Name: "f", Size: 600}, {Typeflag: tar.TypeReg, Name: "g", Size: 600}}, "1000 bytes"},
		{"file as the root", []tar.Header{file(".")}, "not a directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := into(t, archive(t, tt.headers...), 1000, 5)
			if err == nil || !strings.Contains(err.Error(), tt.message) {
				t.Fatalf("unpack = %v, want an error with %q", err, tt.message)
			}
			if status := errorOf(err).Status; status != 400 && status != 413 {
				t.Errorf("status %d, want 400 or 413", status)
			}
		})
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Size: 3}, tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "d/f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "s", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "s/f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "../f"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "/f"}))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, content []byte) {
		const maxBytes, maxEntries = 4096, 8
		dir, _ := into(t, content, maxBytes, maxEntries)
		var entries, size int64
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
		// One over the limit may be there when unpack stops, and the root counts not.
		if entries > maxEntries+2 || size > (maxBytes+1)*maxEntries {
			t.Errorf("%d entries, %d bytes; limits %d, %d", entries, size, maxEntries, maxBytes)
		}
	})
}
