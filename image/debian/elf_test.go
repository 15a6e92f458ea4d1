package debian

import (
	"bytes"
	"debug/elf"
	"os"
	"strings"
	"testing"
	"time"
)

// The host's own true(1) serves as a dynamic program.
func TestCheckELF(t *testing.T) {
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Skip(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	libs, err := f.ImportedLibraries()
	if err != nil || len(libs) == 0 {
		t.Skipf("/bin/true needs no library: %v", err)
	}
	interp := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			raw := make([]byte, p.Filesz)
			if _, err := p.ReadAt(raw, 0); err != nil {
				t.Fatal(err)
			}
			interp = strings.Trim(string(raw), "\x00/")
		}
	}
	now := time.Unix(0, 0)
	m := memory{"usr": "dir", "usr/bin": "dir", "lib64": "dir", "usr/lib": "dir", "usr/x": "dir"}
	c := CheckELF(m)
	if err := c.File("usr/bin/true", 0o755, now, bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	if m["usr/bin/true"] != "755 "+string(b) {
		t.Error("the content is not passed on as it is")
	}
	err = c.Err()
	for _, want := range append(libs, interp) {
		if err == nil || !strings.Contains(err.Error(), "usr/bin/true needs ") || !strings.Contains(err.Error(), want) {
			t.Errorf("Err = %v, want usr/bin/true and %s in it", err, want)
		}
	}
	if err := c.Err("usr/b*/true"); err != nil {
		t.Errorf("Err with an exception = %v", err)
	}
	// The interpreter is found through a directory link, an absolute link and a relative link. A
	// circular link satisfies nothing.
	top, rest, _ := strings.Cut(interp, "/")
	c.links[top] = "usr/x"
	c.links["usr/x/"+rest] = "/usr/x/ld-2"
	c.links["usr/x/ld-2"] = "../x/ld-3"
	c.links["usr/x/ld-3"] = "ld-2"
	for _, l := range libs {
		c.files["usr/lib/"+l] = true
	}
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), interp) {
		t.Errorf("Err with a circle = %v, want %s in it", err, interp)
	}
	delete(c.links, "usr/x/ld-3")
	c.files["usr/x/ld-3"] = true
	if err := c.Err(); err != nil {
		t.Errorf("Err of the whole = %v", err)
	}
	// libjvm.so serves the libraries beside its directory, but no program.
	c.files["opt/jvm/server/libjvm.so"] = true
	c.needs = append(c.needs, need{by: "opt/jvm/libjava.so", name: "libjvm.so", plugin: true})
	if err := c.Err(); err != nil {
		t.Errorf("Err of a plugin = %v", err)
	}
	c.needs = append(c.needs, need{by: "opt/jvm/jtool", name: "libjvm.so"}, need{by: "opt/other/lib.so", name: "libjvm.so", plugin: true})
	for _, by := range []string{"opt/jvm/jtool", "opt/other/lib.so"} {
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), by+" needs libjvm.so") {
			t.Errorf("Err = %v, want %s in it", err, by)
		}
	}
	c.needs = c.needs[:len(c.needs)-3]
	if err := c.File("usr/bin/bad", 0o755, now, strings.NewReader(elf.ELFMAG+"rubbish")); err == nil || !strings.Contains(err.Error(), "usr/bin/bad") {
		t.Errorf("damaged ELF file: %v, want an error naming it", err)
	}
	for _, s := range []string{"", "ab", "#!/bin/sh\n"} {
		p := "usr/bin/x" + s[:min(1, len(s))]
		if err := c.File(p, 0o755, now, strings.NewReader(s)); err != nil || m[p] != "755 "+s {
			t.Errorf("File(%q) = %v, passed on %q", s, err, m[p])
		}
	}
}
