package image

import (
	"strings"
	"testing"
)

// leftOutOf belongs to a base that left out packages and files of each language.
var leftOutOf = &LeftOut{
	Packages: []string{"openssl", "python3-distutils", "dpkg"},
	Files: []LeftOutFiles{
		{Pattern: "usr/share/zoneinfo/right"},
		{Pattern: "usr/lib/python3*/pydoc_data", Names: []string{asked("usr/lib/python3*/pydoc_data", "usr/lib/python3.11/pydoc_data/topics.py")}},
		{Pattern: "usr/lib/python3*/lib-dynload/nis.*", Names: []string{asked("usr/lib/python3*/lib-dynload/nis.*", "usr/lib/python3.11/lib-dynload/nis.cpython-311-x86_64-linux-gnu.so")}},
		{Pattern: "usr/lib/ruby/gems/*/gems/minitest-*", Names: []string{asked("usr/lib/ruby/gems/*/gems/minitest-*", "usr/lib/ruby/gems/3.1.0/gems/minitest-5.15.0/lib/minitest.rb")}},
		{Pattern: "usr/lib/java/lib/modules/java.desktop", Names: []string{"java.awt", "java.beans"}},
		{Pattern: "usr/lib/*/libicuio.so.*", Names: []string{asked("usr/lib/*/libicuio.so.*", "usr/lib/x86_64-linux-gnu/libicuio.so.72")}},
		{Pattern: "usr/share/nodejs/@types"},
	},
	Apart: map[string]string{"tkinter": "python3-tk"},
}

// TestExplain: If a function fails to find a left-out file or package, the explanation names the
// part and the template's key, for the messages of each language. Other failures get no
// explanation.
func TestExplain(t *testing.T) {
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
		got := leftOutOf.Explain(c.text)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || !strings.Contains(got, c.key) {
			t.Errorf("%s\ngot %q, want %q and %q in it", c.text, got, c.want, c.key)
		}
	}
	if got := (*LeftOut)(nil).Explain("No module named 'nis'"); got != "" {
		t.Errorf("nothing was left out: got %q", got)
	}
	slimmed := &LeftOut{Unopened: []LeftOutPart{{Part: "base python", Files: 1, Bytes: 1}}}
	if got := slimmed.Explain("ModuleNotFoundError: No module named 'xml'"); !strings.Contains(got, "xml") || !strings.Contains(got, "keep") {
		t.Errorf("of an image slimmed by trace: got %q", got)
	}
}

// FuzzExplain: Explain reads any message of a function without a panic.
func FuzzExplain(f *testing.F) {
	for _, s := range []string{"No module named 'nis.x'", "cannot load such file -- /", "ENOENT ''", "NoClassDefFoundError: .", "a.so.: cannot open shared object file"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got := leftOutOf.Explain(s); got != "" && !strings.Contains(got, "fret.yaml") {
			t.Errorf("%q: got %q, want the template's name in it", s, got)
		}
	})
}
