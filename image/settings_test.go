package image

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// toyConfig is the configuration of a package tool that only this test knows.
type toyConfig struct{ shop string }

// toySettings are the settings of that tool.
type toySettings struct{ Shop, Home string }

func (c toyConfig) Read(h Host, s *Settings) ([]string, error) {
	*s = s.With(toySettings{FirstSet(c.shop, h.Getenv("TOY_SHOP")), h.ConfigHome()})
	AddVariable(&s.Env, "toy_shop", h.Getenv("TOY_SHOP"))
	return []string{h.Getenv("TOY_CERTS")}, nil
}

// TestToolSettings: A package tool, added by a test alone, reads its configuration, environment
// variables and trusted certificates from the host. FRE's own configuration takes precedence.
func TestToolSettings(t *testing.T) {
	certificates := filepath.Join("testdata", "none.pem")
	root := t.TempDir()
	host := Host{Root: root, Home: "/home/u", Getenv: func(name string) string {
		return map[string]string{"TOY_SHOP": " env ", "TOY_CERTS": certificates, "HTTP_PROXY": "http://proxy.example"}[name]
	}}
	got, err := HostSettings(host, SettingsOverride{}, toyConfig{"own"})
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Env:   []string{"http_proxy=http://proxy.example", "HTTP_PROXY=http://proxy.example", "toy_shop= env "},
		Tools: []any{toySettings{"own", "/home/u/.config"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if own := SettingsOf[toySettings](got); own.Shop != "own" {
		t.Errorf("the tool gets %+v", own)
	}
	if own := SettingsOf[toySettings](Settings{}); own != (toySettings{}) {
		t.Errorf("without settings the tool gets %+v", own)
	}
	got, err = HostSettings(host, SettingsOverride{}, toyConfig{})
	if own := SettingsOf[toySettings](got); err != nil || own.Shop != "env" {
		t.Errorf("the tool gets %+v, %v", own, err)
	}
	changed := got.With(toySettings{Shop: "other"})
	if SettingsOf[toySettings](changed).Shop != "other" || SettingsOf[toySettings](got).Shop != "env" || len(changed.Tools) != 1 {
		t.Errorf("With gives %+v and leaves %+v", changed, got)
	}
	certificates = "settings_test.go"
	if got, err = HostSettings(host, SettingsOverride{}, toyConfig{}); err != nil || !strings.HasSuffix(got.CACerts, certificates) {
		t.Errorf("certificates of the tool: %q, %v", got.CACerts, err)
	}
}

// TestHostSettingsNamesMissingBundle: A file of certificates that FRE's configuration names must
// exist.
func TestHostSettingsNamesMissingBundle(t *testing.T) {
	var over SettingsOverride
	over.CACerts = filepath.Join(t.TempDir(), "none.pem")
	if _, err := HostSettings(Host{}, over); err == nil {
		t.Error("no error")
	}
}
