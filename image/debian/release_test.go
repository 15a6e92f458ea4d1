package debian

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReleases: Another release than the host's comes from the same sources. An error names the
// next step.
func TestReleases(t *testing.T) {
	a := newTestArchive(t)
	a.publish(t, stanza{name: "p", version: "1"})
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/os-release":                   "ID=test\nVERSION_CODENAME=old\n",
		"etc/key.asc":                      string(armored(t, a.key)),
		"etc/other.asc":                    string(armored(t, newKey(t))),
		"etc/apt/sources.list":             "deb [signed-by=/etc/key.asc] " + a.URL + " old main\n",
		"etc/apt/sources.list.d/more.list": "deb [signed-by=/etc/other.asc] " + a.URL + " old-updates main\ndeb " + a.URL + " test main\n",
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	configured := []Source{
		{URI: a.URL, Suite: "test", Components: []string{"main"}, Keys: armored(t, a.key)},
		{URI: a.URL, Suite: "next", Components: []string{"main"}, Keys: armored(t, a.key)},
		{URI: a.URL, Suite: "test-security", Components: []string{"main"}, Keys: armored(t, a.key)},
	}
	for name, tt := range map[string]struct {
		release string
		sources []Source
		suites  []string
		wrong   string // of Open
		fails   string // error of Resolve, with the next step
	}{
		"own":                    {suites: []string{"old", "old-updates"}},
		"own, by name":           {release: "old", suites: []string{"old", "old-updates"}},
		"another":                {release: "test", suites: []string{"test", "test-updates"}, fails: "debian-archive-keyring"},
		"one that is not there":  {release: "none", suites: []string{"none", "none-updates"}, fails: "packages.debian"},
		"configured":             {sources: configured, suites: []string{"test", "test-security"}},
		"another, configured":    {release: "next", sources: configured, suites: []string{"next"}},
		"one that no source has": {release: "old", sources: configured, wrong: "no apt source of the release old"},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := Open(Config{Release: tt.release, Sources: tt.sources, Cache: t.TempDir(), root: root})
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("Open: %v, want %q in it", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var suites []string
			for _, s := range x.sources {
				suites = append(suites, s.Suite)
			}
			slices.Sort(suites)
			if diff := cmp.Diff(tt.suites, suites); diff != "" {
				t.Errorf("suites: -want +got:\n%s", diff)
			}
			if tt.fails == "" {
				return
			}
			_, err = x.Resolve(t.Context(), []string{"p"}, nil)
			if err == nil || !strings.Contains(err.Error(), tt.fails) || !errors.Is(err, ErrSignature) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Resolve: %v, want %q in it", err, tt.fails)
			}
		})
	}
}
