package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
	"github.com/fre-engine/fre/template"
)

// TestDeployRefusesLimits: a deployment with impossible limits for this host is refused at once,
// not at the first event.
func TestDeployRefusesLimits(t *testing.T) {
	r := open(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		field string
		say   []string
		set   func(*template.Resources)
	}{
		{"resources.memory", []string{"controller memory", "4194304 MiB", "lower the limit"}, func(r *template.Resources) { r.MemoryBytes = 4 << 40 }},
		{"resources.cpu", []string{"controller cpu", "1024 CPUs", "lower the limit"}, func(r *template.Resources) { r.CPUMillis = 1024_000 }},
		{"resources.pids", []string{"controller pids", "8388608 processes", "lower the limit"}, func(r *template.Resources) { r.Pids = 1 << 23 }},
		{"resources.files", []string{"RLIMIT_NOFILE", "1099511627776 open files", "LimitNOFILE"}, func(r *template.Resources) { r.Files = 1 << 40 }},
	} {
		_, err := r.Deploy(t.Context(), "f", r.image("f", func(c *image.Config) { test.set(&c.Resources) }), DeployOptions{})
		var field *template.FieldError
		if !errors.As(err, &field) || field.Field != test.field {
			t.Errorf("deploy: %v, want an error about %s", err, test.field)
			continue
		}
		for _, want := range append(test.say, "host "+host+":") {
			if !strings.Contains(field.Message, want) {
				t.Errorf("%s: %q does not say %q", test.field, field.Message, want)
			}
		}
		if _, err := r.Function("f"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the function is there all the same: %v", test.field, err)
		}
	}
	r.deploy("f", func(c *image.Config) { c.Resources.CPUMillis = int64(runtime.NumCPU()) * 1000 })
	r.mustCall("f", "/", "all CPUs", "all CPUs")
}

// TestLargerHost: a function from a larger host runs with the limits of this host.
func TestLargerHost(t *testing.T) {
	r := open(t)
	img := r.image("f", func(c *image.Config) {
		c.Resources.MemoryBytes, c.Resources.CPUMillis, c.Resources.Pids = 4<<40, 1024_000, 1<<22
	})
	spec, err := json.Marshal(functionSpec{Template: img.Name, Version: img.Version})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.PutFunction(t.Context(), store.Function{Name: "f", Image: img.Digest, Spec: spec, Deployed: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start(Config{})
	r.mustCall("f", "/", "still here", "still here")
}
