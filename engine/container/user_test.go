package container

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/bash\n#\nshort:x:1\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\nhuge:x:70000:0::/:\npostgres:x:999:998::/var/lib/postgresql:/bin/sh\n"
	testGroup  = "root:x:0:\nwww-data:x:33:\nssl-cert:x:101:postgres\nwheel:x:10:root,postgres\nbad:x:y:postgres\n"
)

// TestLookUp: the image's lists give a user's id, groups and home.
func TestLookUp(t *testing.T) {
	for user, want := range map[string]account{
		"":               {0, 0, []uint32{10}, "/root"},
		"root":           {0, 0, []uint32{10}, "/root"},
		"0":              {0, 0, []uint32{10}, "/root"},
		"www-data":       {33, 33, nil, "/var/www"},
		"33":             {33, 33, nil, "/var/www"},
		"www-data:root":  {33, 0, nil, "/var/www"},
		"www-data:7":     {33, 7, nil, "/var/www"},
		"postgres":       {999, 998, []uint32{101, 10}, "/var/lib/postgresql"},
		"postgres:wheel": {999, 10, nil, "/var/lib/postgresql"},
		"1234":           {1234, 0, nil, "/"},
		"1234:5678":      {1234, 5678, nil, "/"},
		"65535:65535":    {65535, 65535, nil, "/"},
		":33":            {0, 33, nil, "/root"},
	} {
		got, err := lookUp(strings.NewReader(testPasswd), strings.NewReader(testGroup), user, nil)
		if err != nil {
			t.Errorf("user %q: %v", user, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(account{})); diff != "" {
			t.Errorf("user %q (-want +got):\n%s", user, diff)
		}
	}
	for _, user := range []string{"nobody", "huge", "root:nobody", "65536", "0:65536", "4294967296", "-1", "root:-1", "#", "short"} {
		_, err := lookUp(strings.NewReader(testPasswd), strings.NewReader(testGroup), user, nil)
		var field *template.FieldError
		if !errors.As(err, &field) || field.Field != "user" {
			t.Errorf("user %q: got %v, want it refused", user, err)
		}
	}
}

// TestLookUpGroups: further groups come after the groups that the image gives a user.
func TestLookUpGroups(t *testing.T) {
	var many []string
	for i := range sandbox.MaxGroups + 1 {
		many = append(many, strconv.Itoa(i+1))
	}
	for _, c := range []struct {
		user    string
		further []string
		want    []uint32 // nil: refused
	}{
		{"postgres", []string{"www-data", "7"}, []uint32{101, 10, 33, 7}},
		{"postgres:wheel", []string{"ssl-cert"}, []uint32{101}},
		{"1234", []string{"wheel", "wheel", "10"}, []uint32{10}},
		{"", many[:9], []uint32{10, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"", many, nil},
		{"", []string{"nobody"}, nil},
		{"", []string{"bad"}, nil}, // the group id is not a number
		{"", []string{"65536"}, nil},
		{"", []string{""}, nil},
	} {
		got, err := lookUp(strings.NewReader(testPasswd), strings.NewReader(testGroup), c.user, c.further)
		var field *template.FieldError
		if c.want == nil {
			if !errors.As(err, &field) || field.Field != "groups" {
				t.Errorf("%s with groups %q: %v, %v; want it refused", c.user, c.further, got, err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got.groups); err != nil || diff != "" {
			t.Errorf("%s with groups %q: %v (-want +got):\n%s", c.user, c.further, err, diff)
		}
	}
}

// TestUserOf: the lists of users and groups may lie elsewhere in the image, but not outside.
func TestUserOf(t *testing.T) {
	root := t.TempDir()
	if _, err := userOf(root, "postgres", nil); err == nil {
		t.Error("a user of an image without lists")
	}
	for _, dir := range []string{"etc", "nix/lists"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"passwd": testPasswd, "group": testGroup} {
		err := errors.Join(os.WriteFile(filepath.Join(root, "nix/lists", name), []byte(text), 0o644), os.Symlink("/nix/lists/"+name, filepath.Join(root, "etc", name)))
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := userOf(root, "postgres", nil)
	if diff := cmp.Diff(account{999, 998, []uint32{101, 10}, "/var/lib/postgresql"}, got, cmp.AllowUnexported(account{})); err != nil || diff != "" {
		t.Errorf("by absolute links: %v (-want +got):\n%s", err, diff)
	}
}

// TestUserOfLinks: the engine follows links to an image's lists as the image's own processes would.
// It reads no files of the host, and does not wait on a list that is not a regular file.
func TestUserOfLinks(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("host:x:7:7::/:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, link string
		dir        bool // the link replaces all of /etc
		want       bool
	}{
		{"absolute, inside", "/usr/lib/passwd", false, true},
		{"relative, inside", "../usr/lib/passwd", false, true},
		{"above the root, which is the root", "../../../usr/lib/passwd", false, true},
		{"all of etc", "/usr/lib", true, true},
		{"absolute, outside", outside, false, false},
		{"relative, outside", strings.Repeat("../", 20) + outside, false, false},
		{"directory outside", filepath.Dir(outside), true, false},
		{"nowhere", "/missing", false, false},
		{"a process's", "/proc/self/root" + outside, false, false},
	} {
		root := t.TempDir()
		etc := filepath.Join(root, "etc")
		err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755), os.WriteFile(filepath.Join(root, "usr/lib/passwd"), []byte("own:x:5:6::/:\n"), 0o644))
		if c.dir {
			err = errors.Join(err, os.Symlink(c.link, etc))
		} else {
			err = errors.Join(err, os.Mkdir(etc, 0o755), os.Symlink(c.link, filepath.Join(etc, "passwd")))
		}
		if err != nil {
			t.Fatal(err)
		}
		a, err := userOf(root, "own", nil)
		if found := err == nil && a.uid == 5 && a.gid == 6; found != c.want {
			t.Errorf("%s: user own is %+v, %v", c.name, a, err)
		}
		var field *template.FieldError
		if a, err := userOf(root, "host", nil); !errors.As(err, &field) {
			t.Errorf("%s: the host's user is %+v, %v", c.name, a, err)
		}
	}
	for _, make := range []func(string) error{
		func(path string) error { return unix.Mkfifo(path, 0o644) },
		func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		root := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), make(filepath.Join(root, "etc/passwd"))); err != nil {
			t.Fatal(err)
		}
		if a, err := userOf(root, "own", nil); err == nil {
			t.Errorf("user own is %+v", a)
		}
	}
}

// FuzzLookUp: with any lists in the image, an account has only ids that a sandbox has.
func FuzzLookUp(f *testing.F) {
	f.Add(testPasswd, testGroup, "postgres", "wheel")
	f.Add("a:x:0:0:::", "a:x:1:a,a", "a:a", "1,a,7")
	f.Fuzz(func(t *testing.T, passwd, group, user, further string) {
		a, err := lookUp(strings.NewReader(passwd), strings.NewReader(group), user, strings.Split(further, ","))
		if err != nil {
			return
		}
		if a.uid > 65535 || a.gid > 65535 || len(a.groups) > sandbox.MaxGroups || a.home == "" {
			t.Errorf("lookUp(%q, %q, %q, %q) = %+v", passwd, group, user, further, a)
		}
		for _, g := range a.groups {
			if g > 65535 {
				t.Errorf("group %d", g)
			}
		}
	})
}
