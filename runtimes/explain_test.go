package runtimes_test

import (
	"strings"
	"testing"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes"
	"github.com/fre-engine/fre/template"
)

// leftOutOf belongs to a base that left out packages and files of each language.
var leftOutOf = &image.LeftOut{
	Packages: []string{"openssl", "python3-distutils", "dpkg"},
	Files: []image.LeftOutFiles{
		{Pattern: "usr/share/zoneinfo/right"},
		{Pattern: "usr/lib/python3*/pydoc_data", Names: []string{"pydoc_data"}},
		{Pattern: "usr/lib/python3*/lib-dynload/nis.*", Names: []string{"nis"}},
		{Pattern: "usr/lib/ruby/gems/*/gems/minitest-*", Names: []string{"minitest"}},
		{Pattern: "usr/lib/java/lib/modules/java.desktop", Names: []string{"java.awt", "java.beans"}},
		{Pattern: "usr/lib/*/libicuio.so.*", Names: []string{"libicuio"}},
		{Pattern: "usr/share/nodejs/@types"},
	},
	Apart: map[string]string{"tkinter": "python3-tk"},
}

// TestExplain: If a function fails to find a left-out file or package, the explanation names the
// part and the template's key, for the messages of each language. Other failures get no
// explanation.
func TestExplain(t *testing.T) {
	x := image.NewExplainer(runtimes.All())
	for _, c := range []struct{ text, want, key string }{
		{"ModuleNotFoundError: No module named 'pydoc_data'", "usr/lib/python3*/pydoc_data", "keep:"},
		{"ModuleNotFoundError: No module named 'pydoc_data.topics'", "usr/lib/python3*/pydoc_data", "keep:"},
		{"ModuleNotFoundError: No module named 'nis'", "usr/lib/python3*/lib-dynload/nis.*", "keep:"},
		{"ModuleNotFoundError: No module named 'tkinter'", "python3-tk", "packages: {deb:"},
		{"ModuleNotFoundError: No module named 'distutils.core'", "python3-distutils", "packages: {deb:"},
		{"FileNotFoundError: [Errno 2] No such file or directory: 'openssl'", "openssl", "packages: {deb:"},
		{"FileNotFoundError: [Errno 2] No such file or directory: '/usr/share/zoneinfo/right/UTC'", "usr/share/zoneinfo/right", "keep:"},
		{"Error: ENOENT: no such file or directory, open '/usr/share/nodejs/@types/node/index.d.ts'", "usr/share/nodejs/@types", "keep:"},
		{"LoadError: cannot load such file -- minitest/autorun", "usr/lib/ruby/gems/*/gems/minitest-*", "keep:"},
		{"Errno::ENOENT: No such file or directory @ rb_sysopen - /usr/share/zoneinfo/right/UTC", "usr/share/zoneinfo/right", "keep:"},
		{"java.lang.NoClassDefFoundError: java/beans/PropertyChangeSupport", "java.desktop", "keep:"},
		{"x.Broken: no bean\nCaused by: java.lang.ClassNotFoundException: java.awt.image.BufferedImage", "java.desktop", "keep:"},
		{"java.io.FileNotFoundException: /usr/share/zoneinfo/right/UTC (No such file or directory)", "usr/share/zoneinfo/right", "keep:"},
		{"ImportError: libicuio.so.72: cannot open shared object file: No such file or directory", "usr/lib/*/libicuio.so.*", "keep:"},
		{"ModuleNotFoundError: No module named 'right'", "", ""},
		{"ModuleNotFoundError: No module named 'requests'", "", ""},
		{"java.lang.ClassNotFoundException: java.awtful.X", "", ""},
		{"Error: Cannot find module './types'", "", ""},
		{"No such file or directory: '/tmp/x'", "", ""},
		{"ValueError: nothing is missing", "", ""},
	} {
		got := x.Failure(&image.Config{LeftOut: leftOutOf}, "", c.text)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || !strings.Contains(got, c.key) {
			t.Errorf("%s\ngot %q, want %q and %q in it", c.text, got, c.want, c.key)
		}
	}
	if got := x.Failure(&image.Config{}, "No module named 'nis'", ""); got != "" {
		t.Errorf("nothing was left out: got %q", got)
	}
	slimmed := &image.LeftOut{Unopened: []image.LeftOutPart{{Part: "base python", Files: 1, Bytes: 1}}}
	if got := x.Failure(&image.Config{LeftOut: slimmed}, "ModuleNotFoundError: No module named 'xml'", ""); !strings.Contains(got, "xml") || !strings.Contains(got, "keep") {
		t.Errorf("of an image slimmed by trace: got %q", got)
	}
}

// FuzzExplain: The Explainer reads any message of a function without a panic.
func FuzzExplain(f *testing.F) {
	x := image.NewExplainer(runtimes.All())
	for _, s := range []string{"No module named 'nis.x'", "cannot load such file -- /", "ENOENT ''", "NoClassDefFoundError: .", "a.so.: cannot open shared object file"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := x.Failure(&image.Config{LeftOut: leftOutOf}, s, s); got != "" && !strings.Contains(got, "fret.yaml") {
			t.Errorf("%q: got %q, want the template's name in it", s, got)
		}
	})
}

// TestExplainLimits: The error of a function at a limit (/tmp, memory, open files, processes) names
// the template's key that raises the limit.
func TestExplainLimits(t *testing.T) {
	x := image.NewExplainer(runtimes.All())
	c := &image.Config{Resources: template.Resources{MemoryBytes: 128 << 20, TmpBytes: 64 << 20, Pids: 64, Files: 1024}}
	for text, want := range map[string]string{
		"OSError: [Errno 28] No space left on device: '/tmp/x'":                             "at most 64MiB: raise resources.tmp in fret.yaml",
		"Error: ENOSPC: no space left on device, write":                                     "resources.tmp",
		"Errno::ENOSPC: No space left on device @ io_writev":                                "resources.tmp",
		"java.io.IOException: No space left on device":                                      "resources.tmp",
		"OSError: [Errno 24] Too many open files: 'a'":                                      "at most 1024 open files: raise resources.files",
		"RuntimeError: can't start new thread":                                              "at most 64 processes and threads: raise resources.pids",
		"java.lang.OutOfMemoryError: unable to create native thread: possibly out of":       "resources.pids",
		"Error: spawn /bin/sh EAGAIN":                                                       "resources.pids",
		"MemoryError: ":                                                                     "at most 128MiB of memory, /tmp included: raise resources.memory",
		"java.lang.OutOfMemoryError: Java heap space":                                       "resources.memory",
		"FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory": "resources.memory",
		"NoMemoryError: failed to allocate memory":                                          "resources.memory",
		"Allowed memory size of 134217728 bytes exhausted (tried to allocate 8 bytes)":      "resources.memory",
		"ValueError: no":          "",
		"BlockingIOError: EAGAIN": "",
	} {
		if got := x.Failure(c, text, ""); got == "" != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestExplainAbort: If a function at its language's heap limit aborts, the error names the
// template's key. Other programs abort without an explanation.
func TestExplainAbort(t *testing.T) {
	x := image.NewExplainer(runtimes.All())
	heap := &image.Config{Args: []string{"/usr/bin/node", "--max-old-space-size=96", "/opt/fre/bootstrap.js"}}
	if got, want := x.Abort(heap), "Node aborts when the heap of 96 MiB is full; if the function's log shows a full heap, raise resources.memory in fret.yaml"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := x.Abort(&image.Config{Args: []string{"/usr/bin/python3"}}); got != "" {
		t.Errorf("another program: %q", got)
	}
}
