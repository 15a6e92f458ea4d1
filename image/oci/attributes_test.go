package oci

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLoadedRoot: The root of a loaded image has no set-id bits of files, no file capabilities and
// no overlay attributes, in any tar notation. These address the kernel, not programs.
func TestLoadedRoot(t *testing.T) {
	s := openStore(t)
	attributes := []string{
		"security.capability", "trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.origin",
		"user.overlay.opaque", "user.overlay.redirect", "user.x", "system.posix_acl_access",
	}
	records := map[string]string{}
	for _, name := range attributes {
		for _, prefix := range []string{"SCHILY.xattr.", "LIBARCHIVE.xattr.", "RHT.security."} {
			records[prefix+name] = "y"
		}
	}
	var entries []entry
	for name, kind := range map[string]byte{"program": tar.TypeReg, "folder": tar.TypeDir, "link": tar.TypeSymlink} {
		h := tar.Header{Typeflag: kind, Name: name, Mode: 0o6755, PAXRecords: records, Format: tar.FormatPAX}
		body := ""
		switch kind {
		case tar.TypeReg:
			body = "x"
		case tar.TypeSymlink:
			h.Linkname = "program"
		}
		entries = append(entries, entry{h, body})
	}
	layer := pack(t, entries...)
	images, err := Load(t.Context(), s, bytes.NewReader(dockerArchive(t, configFor(t, layer), []string{"app:1"}, layer)), Options{})
	if err != nil {
		t.Fatal(err)
	}
	root, found := s.Rootfs(images[0].Digest), 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		found++
		if d.Type().IsRegular() && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || !d.Type().IsRegular() && !d.IsDir() && d.Type() != fs.ModeSymlink {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(path, list)
		for _, name := range attributes {
			if strings.Contains(string(list[:max(n, 0)]), name) {
				t.Errorf("%s has the attribute %s", path, name)
			}
		}
		return err
	})
	if err != nil || found < 4 {
		t.Errorf("%d files, %v", found, err)
	}
}
