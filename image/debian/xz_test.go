package debian

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// xzFiles are outputs of the command xz for "hello\n", by name.
var xzFiles = map[string]string{
	"no check":          "/Td6WFoAAAD/EtlBAgAhARYAAAB0L+WjAQAFaGVsbG8KAAAAAAEWBsmlfdUGcp56AQAAAAAAWVo=",
	"CRC32":             "/Td6WFoAAAFpIt42AgAhARYAAAB0L+WjAQAFaGVsbG8KAAAAIDA6NgABGgbF6sh5kEKZDQEAAAAAAVla",
	"CRC64":             "/Td6WFoAAATm1rRGAgAhARYAAAB0L+WjAQAFaGVsbG8KAAAApWCX8ZT2/eAAAR4GwS+kHR+2830BAAAAAARZWg==",
	"SHA-256":           "/Td6WFoAAArh+wyhAgAhARYAAAB0L+WjAQAFaGVsbG8KAAAAWJG1tSLV3whtD/CxEPvZ0hu0/HFjrzTQgoai6Eb2vgMAATYGa4H5QBibS5oBAAAAAApZWg==",
	"x86 filter":        "/Td6WFoAAATm1rRGAgEEACEBAADaM60DAQAFaGVsbG8KAAAApWCX8ZT2/eAAAR4GwS+kHR+2830BAAAAAARZWg==",
	"64 MiB dictionary": "/Td6WFoAAATm1rRGAgAhARwAAAAQz1jMAQAFaGVsbG8KAAAApWCX8ZT2/eAAAR4GwS+kHR+2830BAAAAAARZWg==",
	"96 MiB dictionary": "/Td6WFoAAATm1rRGAgAhAR0AAAB1qOR0AQAFaGVsbG8KAAAApWCX8ZT2/eAAAR4GwS+kHR+2830BAAAAAARZWg==",
}

func xzFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(xzFiles[name])
	if err != nil || len(b) == 0 {
		t.Fatalf("%s: %d bytes, %v", name, len(b), err)
	}
	return b
}

// TestXz: A member of a package may be any xz file with a dictionary of at most 64 MiB. A wrong
// checksum, a missing end and a larger dictionary are errors.
func TestXz(t *testing.T) {
	two := append(append(xzFile(t, "CRC32"), 0, 0, 0, 0), xzFile(t, "SHA-256")...)
	spoiled := func(name string, at int) []byte {
		b := xzFile(t, name)
		b[at] ^= 1
		return b
	}
	tests := []struct {
		name    string
		content []byte
		want    string // "": an error
	}{
		{"no check", xzFile(t, "no check"), "hello\n"},
		{"CRC32", xzFile(t, "CRC32"), "hello\n"},
		{"CRC64", xzFile(t, "CRC64"), "hello\n"},
		{"SHA-256", xzFile(t, "SHA-256"), "hello\n"},
		{"x86 filter", xzFile(t, "x86 filter"), "hello\n"},
		{"two streams", two, "hello\nhello\n"},
		{"64 MiB dictionary", xzFile(t, "64 MiB dictionary"), "hello\n"},
		{"96 MiB dictionary", xzFile(t, "96 MiB dictionary"), ""},
		{"96 MiB dictionary in the second stream", append(xzFile(t, "CRC32"), xzFile(t, "96 MiB dictionary")...), ""},
		{"wrong CRC32", spoiled("CRC32", 28), ""},
		{"wrong CRC64", spoiled("CRC64", 28), ""},
		{"wrong SHA-256", spoiled("SHA-256", 28), ""},
		{"end missing", two[:len(two)-1], ""},
		{"bytes behind the end", append(xzFile(t, "CRC32"), 'x'), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []byte
			r, done, err := decompress(".xz", bytes.NewReader(tt.content))
			if err == nil {
				defer done()
				got, err = io.ReadAll(r)
			}
			if (err != nil) != (tt.want == "") || err == nil && string(got) != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

// BenchmarkXz unpacks the source files of this package, packed by the command xz, or the file
// FRE_XZ_FILE, for example the data.tar.xz of a package.
func BenchmarkXz(b *testing.B) {
	name := os.Getenv("FRE_XZ_FILE")
	if name == "" {
		name = filepath.Join(b.TempDir(), "source.xz")
		if out, err := exec.CommandContext(b.Context(), "sh", "-c", `cat *.go | xz -6 > "$1"`, "sh", name).CombinedOutput(); err != nil {
			b.Fatal(err, string(out))
		}
	}
	content, err := os.ReadFile(name)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, done, err := decompress(".xz", bytes.NewReader(content))
		if err != nil {
			b.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r)
		if err != nil {
			b.Fatal(err)
		}
		done()
		b.SetBytes(n)
	}
}

// debOf returns a package with data.tar.xz.
func debOf(member []byte) []byte {
	head := "%-16s0           0     0     100644  %-10d`\n"
	var b strings.Builder
	b.WriteString("!<arch>\n" + fmt.Sprintf(head, "debian-binary", 4) + "2.0\n" + fmt.Sprintf(head, "data.tar.xz", len(member)))
	b.Write(member)
	return []byte(b.String())
}
