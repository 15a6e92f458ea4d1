package runtimes_test

import (
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/image/debian"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/runtimes"
)

// TestBasesRun unpacks each base environment from the host's archive, checks that all files in it
// link, and runs a program of its kind in a chroot. The test needs root and the distribution's
// archive; FRE_TEST_CACHE keeps the packages.
func TestBasesRun(t *testing.T) {
	fretest.RequireRoot(t)
	cache := os.Getenv("FRE_TEST_CACHE")
	if cache == "" {
		cache = t.TempDir()
	}
	archives := map[string]*debian.Archive{}
	open := func(release string) *debian.Archive {
		a, err := debian.Open(debian.Config{Release: release, Cache: cache, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	tests := map[string]struct {
		release  string // "" for the host's own
		base     image.BaseSpec
		add      []string
		maxBytes int64
		run      []string
		want     string
	}{
		"python": {
			base: runtimes.PythonBase(), maxBytes: 62e6,
			run:  []string{"/usr/bin/python3", "-W", "ignore", "-c", "import distutils.core, lib2to3.main, venv, ensurepip, dbm.gnu, nis, pydoc_data.topics, test.support; import ssl, sqlite3, ctypes, lzma, bz2, json, asyncio, decimal, zoneinfo, hashlib, multiprocessing, subprocess; ssl.create_default_context().cert_store_stats()['x509_ca'] > 50 or exit(1); zoneinfo.ZoneInfo('Europe/Berlin'); print(subprocess.check_output('echo sub', shell=True, text=True))"},
			want: "sub",
		},
		"agent": {
			base: runtimes.AgentBase(), maxBytes: 105e6,
			run:  []string{"bash", "-c", "set -o pipefail; for c in awk cat cp cut diff find grep gzip head id ls mkdir mv ps rm sed sleep sort tail tar tr wc xargs; do type -P $c || exit 1; done; pip --version && [ $(seq 3 | grep -v 2 | wc -l) = 2 ] && echo all is there"},
			want: "all is there",
		},
		"node": {
			base: runtimes.NodeBase(), maxBytes: 133e6,
			run:  []string{"/usr/bin/node", "-e", "fetch; require('http'); require('crypto').randomUUID(); new Intl.DateTimeFormat('de'); console.log(1)"},
			want: "1",
		},
		"node module": {
			base: runtimes.NodeBase(), maxBytes: 133e6,
			run:  []string{"/usr/bin/node", "--input-type=module", "-e", "import {readFile} from 'fs/promises'; new Request('http://x/'); console.log(typeof readFile)"},
			want: "function",
		},
		"php": { // as FinishBase makes it: all extensions are loaded
			base: runtimes.PHPBase(), maxBytes: 103e6,
			run: []string{"sh", "-c", `exec /usr/bin/php8.? -n -r '
				$left = glob(ini_get("extension_dir") . "/*.so");
				for ($n = count($left); $left; $n = count($left)) {
					$left = array_filter($left, fn($f) => !@dl(basename($f)));
					count($left) < $n || die("no " . implode(" ", $left));
				}
				$c = new PDO("sqlite::memory:");
				class_exists("IntlDateFormatter") && class_exists("ZipArchive") && class_exists("SoapClient") && function_exists("bcadd") && function_exists("mysqli_connect") && function_exists("gmp_add") && function_exists("pg_connect") && iconv("UTF-8", "EUC-JP", "a") === "a" || die("an extension");
				simplexml_load_string("<a>b</a>") && mb_strlen("grüße") === 5 && curl_init() && FFI::cdef("int getpid();")->getpid() > 0 || die("!");
				new DateTimeZone("Europe/Berlin");
				file_get_contents(openssl_get_cert_locations()["default_cert_file"]) || die("no certificates");
				echo exec("echo sub");'`},
			want: "sub",
		},
		"ruby": {
			base: runtimes.RubyBase(), maxBytes: 60e6,
			run: []string{"/usr/bin/ruby", "--disable=gems", "-e", `
				%w[json socket openssl net/http zlib digest psych yaml date time set securerandom erb logger tempfile fileutils etc fiddle stringio strscan bigdecimal io/console pty open3 rubygems bundler irb rdoc readline ripper].each { |f| require f }
				OpenSSL::X509::Store.new.tap(&:set_default_paths).verify(OpenSSL::X509::Certificate.new(File.read("/etc/ssl/certs/ca-certificates.crt"))) or exit 1
				ENV["TZ"] = "Europe/Berlin"; Time.at(0).hour == 1 or exit 1
				puts "grüße".encode("ISO-8859-1").bytesize, ` + "`echo sub;`"},
			want: "5\nsub",
		},
		"native": {
			base: runtimes.NativeBase(), maxBytes: 35e6,
			run:  []string{"sh", "-c", "echo hi | sed s/h/H/ | grep H | awk '{print $1}'"},
			want: "Hi",
		},
		// One more release is enough to check names, layout and the libraries' new names; python
		// and node have most of the changes.
		"python:trixie": {
			release: "trixie", base: runtimes.PythonBase(), maxBytes: 66e6,
			run:  []string{"/usr/bin/python3", "-c", "import sys, ssl, sqlite3, ctypes, lzma, bz2, zoneinfo, venv, ensurepip, dbm.gnu; zoneinfo.ZoneInfo('Europe/Berlin'); print(sys.version_info[:2])"},
			want: "(3, 13)",
		},
		"node:trixie": {
			release: "trixie", base: runtimes.NodeBase(), maxBytes: 148e6,
			run:  []string{"/usr/bin/node", "-e", "fetch; require('crypto').randomUUID(); new Intl.DateTimeFormat('de'); console.log(process.version)"},
			want: "v20.",
		},
		"pip": {
			base: runtimes.PythonBase(), add: runtimes.PythonTools(), maxBytes: 82e6,
			run:  []string{"/usr/bin/python3", "-m", "pip", "--version"},
			want: "pip ",
		},
		"npm": {
			base: runtimes.NodeBase(), add: runtimes.NodeTools(), maxBytes: 168e6,
			run:  []string{"npm", "--version"},
			want: ".",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := archives[tt.release]
			if a == nil {
				a = open(tt.release)
				archives[tt.release] = a
			}
			roots := append(tt.base.Roots, tt.add...)
			for _, name := range tt.base.Also {
				if _, err := a.Resolve(t.Context(), []string{name}, tt.base.Exclude); err == nil {
					roots = append(roots, name)
				}
			}
			pkgs, err := a.Resolve(t.Context(), roots, tt.base.Exclude)
			if err != nil {
				t.Fatal(err)
			}
			keep, err := debian.Keep(tt.base.Drop)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			w := &dirWriter{root: root}
			check := debian.CheckELF(w)
			var deb int64
			if err := a.Unpack(t.Context(), pkgs, check, keep, func(_ string, _, total int64) { deb = total }); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d packages, %d bytes packed, %d unpacked", len(pkgs), deb, w.bytes)
			if err := check.Err(); err != nil {
				t.Errorf("does not link:\n%v", err)
			}
			if w.bytes > tt.maxBytes {
				t.Errorf("base has %d bytes, want at most %d", w.bytes, tt.maxBytes)
			}
			if err := os.Mkdir(dir+"/tmp", 0o777); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "chroot", append([]string{dir}, tt.run...)...)
			cmd.Env = []string{"PATH=/usr/bin", "HOME=/tmp", "LC_ALL=C.UTF-8"}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("run %q: %v, got %q, want %q in it", tt.run, err, out, tt.want)
			}
		})
	}
}

// dirWriter is a debian.Writer on a directory.
type dirWriter struct {
	root  *os.Root
	bytes int64
}

func (w *dirWriter) File(p string, mode fs.FileMode, _ time.Time, r io.Reader) error {
	f, err := w.root.OpenFile(p, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, r)
	w.bytes += n
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (w *dirWriter) Directory(p string, mode fs.FileMode, _ time.Time) error {
	return w.root.Mkdir(p, mode)
}

func (w *dirWriter) Symlink(p, target string, _ time.Time) error {
	return w.root.Symlink(target, p)
}
