package deploy

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/zclconf/go-cty/cty"
)

// jobFile is the part of Nomad's job specification
// (developer.hashicorp.com/nomad/docs/job-specification) that the example may use; all other fields
// are errors.
type jobFile struct {
	Job struct {
		Name        string   `hcl:"name,label"`
		Type        string   `hcl:"type"`
		Datacenters []string `hcl:"datacenters"`
		Constraint  struct {
			Attribute string `hcl:"attribute"`
			Value     string `hcl:"value"`
		} `hcl:"constraint,block"`
		Update struct {
			MaxParallel int    `hcl:"max_parallel"`
			Stagger     string `hcl:"stagger"`
		} `hcl:"update,block"`
		Group struct {
			Name    string `hcl:"name,label"`
			Network struct {
				Port struct {
					Label  string `hcl:"label,label"`
					Static int    `hcl:"static"`
				} `hcl:"port,block"`
			} `hcl:"network,block"`
			Service struct {
				Name     string `hcl:"name"`
				Port     string `hcl:"port"`
				Provider string `hcl:"provider"`
				Check    struct {
					Type     string `hcl:"type"`
					Path     string `hcl:"path"`
					Interval string `hcl:"interval"`
					Timeout  string `hcl:"timeout"`
				} `hcl:"check,block"`
			} `hcl:"service,block"`
			Restart struct {
				Attempts int    `hcl:"attempts"`
				Interval string `hcl:"interval"`
				Delay    string `hcl:"delay"`
				Mode     string `hcl:"mode"`
			} `hcl:"restart,block"`
			Task struct {
				Name        string `hcl:"name,label"`
				Driver      string `hcl:"driver"`
				User        string `hcl:"user"`
				KillSignal  string `hcl:"kill_signal"`
				KillTimeout string `hcl:"kill_timeout"`
				Config      struct {
					Command string   `hcl:"command"`
					Args    []string `hcl:"args"`
				} `hcl:"config,block"`
				Env struct {
					Home string `hcl:"HOME"`
				} `hcl:"env,block"`
				Template struct {
					Destination string `hcl:"destination"`
					ChangeMode  string `hcl:"change_mode"`
					Data        string `hcl:"data"`
				} `hcl:"template,block"`
				Resources struct {
					CPU    int `hcl:"cpu"`
					Memory int `hcl:"memory"`
				} `hcl:"resources,block"`
			} `hcl:"task,block"`
		} `hcl:"group,block"`
	} `hcl:"job,block"`
}

// readJob reads a job strictly. Variables that Nomad fills in at run time stay unchanged.
func readJob(src string) (*jobFile, error) {
	file, diags := hclparse.NewParser().ParseHCL([]byte(src), "fre.nomad.hcl")
	if diags.HasErrors() {
		return nil, diags
	}
	later := func(s string) cty.Value { return cty.StringVal("${" + s + "}") }
	job := new(jobFile)
	diags = gohcl.DecodeBody(file.Body, &hcl.EvalContext{Variables: map[string]cty.Value{
		"NOMAD_TASK_DIR": later("NOMAD_TASK_DIR"), "NOMAD_ADDR_http": later("NOMAD_ADDR_http"),
		"attr": cty.ObjectVal(map[string]cty.Value{"kernel": cty.ObjectVal(map[string]cty.Value{"name": later("attr.kernel.name")})}),
	}}, job)
	if diags.HasErrors() {
		return nil, diags
	}
	return job, nil
}

func TestNomad(t *testing.T) {
	src := read(t, "nomad/fre.nomad.hcl")
	file, err := readJob(src)
	if err != nil {
		t.Fatal(err)
	}
	job, group, task := &file.Job, &file.Job.Group, &file.Job.Group.Task
	for _, c := range []struct{ field, got, want string }{
		{"type", job.Type, "system"},
		{"driver", task.Driver, "raw_exec"},
		{"user", task.User, "root"},
		{"service's port", group.Service.Port, group.Network.Port.Label},
		{"check", group.Service.Check.Type + " " + group.Service.Check.Path, "http /healthz"},
		{"restart mode", group.Restart.Mode, "delay"},
		{"configuration", strings.Join(task.Config.Args[:3], " "), "serve --config ${NOMAD_TASK_DIR}/" + strings.TrimPrefix(task.Template.Destination, "local/")},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.field, c.got, c.want)
		}
	}
	for field, s := range map[string]string{
		"stagger": job.Update.Stagger, "interval": group.Restart.Interval, "delay": group.Restart.Delay,
		"check interval": group.Service.Check.Interval, "check timeout": group.Service.Check.Timeout,
	} {
		if d, err := time.ParseDuration(s); err != nil || d <= 0 {
			t.Errorf("%s: %q is no duration", field, s)
		}
	}
	longerThanDrain(t, task.KillTimeout, task.Config.Args)

	for _, tt := range []struct{ name, old, changed string }{
		{"syntax", `job "fre" {`, `job "fre" {{`},
		{"unknown attribute", "kill_signal ", "kill_signals "},
		{"unknown block", "constraint {", "constraints {"},
		{"attribute left out", `driver       = "raw_exec"`, ""},
		{"no number", "static = 8080", `static = "http"`},
		{"unknown variable", "${NOMAD_TASK_DIR}", "${TASK_DIR}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := strings.Replace(src, tt.old, tt.changed, 1)
			if _, err := readJob(bad); bad == src || err == nil {
				t.Errorf("%q for %q: no error", tt.changed, tt.old)
			}
		})
	}
}
