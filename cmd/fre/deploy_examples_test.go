package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/daemon"
)

// The examples of docs/deploy start fre with valid arguments and a valid configuration.
// tools/deploy checks the rest of the examples.
func TestDeployExamples(t *testing.T) {
	const address = "10.1.0.11:8080"
	tests := []struct {
		name string
		// start returns the engine's arguments and configuration on a machine with the name fre-1
		// and the given address.
		start func(t *testing.T) (args []string, config string)
		nats  string
		key   string
	}{
		{
			name: "systemd", nats: "nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222", key: "/etc/fre/cluster.key",
			start: func(t *testing.T) ([]string, string) {
				t.Helper()
				unit, config := example(t, "systemd/fre.service"), example(t, "systemd/fre.yaml")
				line := inside(t, unit, `(?m)^ExecStart=/usr/local/bin/fre (.*)$`)
				return strings.Fields(strings.ReplaceAll(line, "${FRE_LISTEN}", address)), config
			},
		},
		{
			name: "nomad", nats: "nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222", key: "/etc/fre/cluster.key",
			start: func(t *testing.T) ([]string, string) {
				t.Helper()
				job := example(t, "nomad/fre.nomad.hcl")
				job = strings.NewReplacer(`{{ env "node.unique.name" }}`, "fre-1", `{{ env "NOMAD_ADDR_http" }}`, address,
					"${NOMAD_ADDR_http}", address, "${NOMAD_TASK_DIR}", "/local").Replace(job)
				var args []string
				if err := json.Unmarshal([]byte(inside(t, job, `args += (\[.*\])`)), &args); err != nil {
					t.Fatal(err)
				}
				return args, inside(t, job, `(?s)data += <<YAML\n(.*?)YAML`)
			},
		},
		{name: "kubernetes", nats: "nats://fre:abc123@nats:4222", key: "/etc/fre-cluster/cluster.key", start: startInPod},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			args, config := tt.start(t)
			if len(args) == 0 || args[0] != "serve" {
				t.Fatalf("arguments %q, want those of serve", args)
			}
			if err := serveCommand().ParseFlags(args[1:]); err != nil {
				t.Error(err)
			}
			path := filepath.Join(t.TempDir(), "fre.yaml")
			if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			var cfg daemon.Config
			if err := cfg.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			want := daemon.Cluster{Node: "fre-1", Registry: "registry.example.org/fre", Address: address, KeyFile: tt.key}
			if diff := cmp.Diff(want, cfg.Cluster); diff != "" {
				t.Errorf("cluster (-want +got):\n%s", diff)
			}
			if cfg.Events.URL != tt.nats || cfg.Events.Replicas != 3 {
				t.Errorf("events at %q with %d copies, want %q with 3", cfg.Events.URL, cfg.Events.Replicas, tt.nats)
			}
		})
	}
}

// startInPod runs the DaemonSet's script in temporary directories, with a program in place of fre
// that records its arguments.
func startInPod(t *testing.T) (args []string, config string) {
	t.Helper()
	var script, template string
	for doc := range strings.SplitSeq(example(t, "kubernetes/fre.yaml"), "\n---\n") {
		var object struct {
			Data map[string]string `yaml:"data"`
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Args []string `yaml:"args"`
						} `yaml:"containers"`
					} `yaml:"spec"`
				} `yaml:"template"`
			} `yaml:"spec"`
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		if s := object.Data["fre.yaml"]; s != "" {
			template = s
		}
		for _, c := range object.Spec.Template.Spec.Containers {
			script = strings.Join(c.Args, "\n")
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"fre.yaml.in": template,
		"fre":         "#!/bin/sh\necho \"$@\" >" + dir + "/args\nif [ -n \"$NATS_PASSWORD\" ]; then echo the password is in the environment >&2; exit 1; fi\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script = strings.NewReplacer("/etc/fre/fre.yaml", dir+"/fre.yaml.in", "/run/fre.yaml", dir+"/fre.yaml").Replace(script)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-ec", script)
	cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "NODE_NAME=fre-1.example.org", "POD_IP=10.1.0.11", "NATS_PASSWORD=abc123"}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s\n%s", err, out, script)
	}
	if info, err := os.Stat(filepath.Join(dir, "fre.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the configuration with its password: %v, %v; want it readable by root alone", info, err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return strings.Fields(read("args")), read("fre.yaml")
}

// example returns the text of a file below docs/deploy.
func example(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/deploy/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// inside returns the first group of a pattern's first match.
func inside(t *testing.T, text, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in:\n%s", pattern, text)
	}
	return m[1]
}
