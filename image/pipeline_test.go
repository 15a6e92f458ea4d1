package image

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// TestPipelineImage: A template with steps needs no base, no runtime and no network. Its image is
// the same each time, and all engines accept it.
func TestPipelineImage(t *testing.T) {
	s, err := store.Open(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir := t.TempDir()
	const src = "id: f\nversion: '2'\npipeline: [a, b@3]\nresources: {timeout: 5s}\ntriggers: [{name: n, cron: {schedule: '@daily'}}]\nevents: {retries: 1}\naccess: open\n"
	if err := os.WriteFile(filepath.Join(dir, template.FileName), []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var digests []store.Digest
	for range 2 {
		b := &Builder{Store: s}
		tmpl, err := b.Template(root)
		if err != nil {
			t.Fatal(err)
		}
		img, lock, err := b.Build(t.Context(), root, tmpl, nil)
		if err != nil || lock != nil {
			t.Fatal(lock, err)
		}
		digests = append(digests, img.Digest)
		c, err := ConfigOf(img)
		if err == nil {
			err = c.Check()
		}
		if err != nil || c.Protocol != ProtocolPipeline || !slices.Equal(c.Pipeline, []string{"a", "b@3"}) || len(c.Args) > 0 ||
			len(c.Triggers) != 1 || c.Events == nil || c.Access != template.AccessOpen || c.Resources.Timeout != 5e9 || c.Tenant != template.DefaultTenant {
			t.Errorf("%+v, %v", c, err)
		}
		if text, err := os.ReadFile(filepath.Join(s.Rootfs(img.Digest), pipelineFile)); err != nil || string(text) != "a\nb@3\n" {
			t.Errorf("its file is %q, %v", text, err)
		}
	}
	if digests[0] != digests[1] {
		t.Error("the same template gave two images")
	}
}

// TestPipelineConfig: A pipeline configuration that no template can express is refused in foreign
// images.
func TestPipelineConfig(t *testing.T) {
	tmpl, err := (&Builder{}).Parse(template.FileName, []byte("id: f\npipeline: [a]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"":              func(*Config) {},
		"no steps":      func(c *Config) { c.Pipeline = nil },
		"too many":      func(c *Config) { c.Pipeline = slices.Repeat(c.Pipeline, template.MaxSteps+1) },
		"several names": func(c *Config) { c.Pipeline = []string{"a|b"} },
		"a tenant's":    func(c *Config) { c.Pipeline = []string{"a.red"} },
		"a program":     func(c *Config) { c.Args = []string{"/bin/sh"} },
		"kept warm":     func(c *Config) { c.Instances.Min = 1 },
		"both":          func(c *Config) { c.Protocol, c.Args = ProtocolChannel, []string{"/bin/sh"} },
	} {
		c := Config{Protocol: ProtocolPipeline, Pipeline: tmpl.Pipeline, Tenant: tmpl.Tenant, Instances: tmpl.Instances, Resources: tmpl.Resources, Network: tmpl.Network}
		change(&c)
		if err := c.Check(); (err == nil) != (name == "") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
