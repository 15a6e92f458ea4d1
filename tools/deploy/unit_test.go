package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unitKeys are the directives that the examples may use, by section, with the pattern of their
// values: systemd.unit(5), systemd.service(5), systemd.exec(5), systemd.kill(5),
// systemd.resource-control(5).
var unitKeys = map[string]map[string]*regexp.Regexp{
	"Unit": {"Description": text, "After": units, "Wants": units},
	"Service": {
		"Type": words("exec", "simple", "notify"), "Environment": regexp.MustCompile(`^[A-Z_]+=\S+( [A-Z_]+=\S+)*$`),
		"EnvironmentFile": regexp.MustCompile(`^-?/\S+$`), "ExecStart": regexp.MustCompile(`^/\S+( \S+)*$`),
		"Restart": words("no", "on-failure", "always"), "RestartSec": span, "TimeoutStopSec": span,
		"Delegate": flag, "KillMode": words("control-group", "mixed", "process"), "OOMPolicy": words("continue", "stop", "kill"),
		"TasksMax": number, "LimitNOFILE": number, "LimitMEMLOCK": number,
		"StateDirectory": name, "RuntimeDirectory": name, "StateDirectoryMode": mode, "RuntimeDirectoryMode": mode,
		"ProtectSystem": words("yes", "no", "full", "strict"), "ProtectHome": words("yes", "no", "read-only", "tmpfs"),
		"PrivateTmp": flag, "NoNewPrivileges": flag, "CapabilityBoundingSet": regexp.MustCompile(`^~?CAP_[A-Z_]+( CAP_[A-Z_]+)*$`),
	},
	"Install": {"WantedBy": units},
}

var (
	text   = regexp.MustCompile(`\S`)
	flag   = words("yes", "no")
	name   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	units  = regexp.MustCompile(`^[a-z-]+\.(target|service)( [a-z-]+\.(target|service))*$`)
	span   = regexp.MustCompile(`^[0-9]+(ms|s|min)$`)
	number = regexp.MustCompile(`^([0-9]+|infinity)$`)
	mode   = regexp.MustCompile(`^0[0-7]{3}$`)
)

// capabilities lists the capabilities(7) that the engine does not need.
var capabilities = strings.Fields("CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_BOOT CAP_SYS_TIME CAP_SYS_PACCT CAP_MAC_ADMIN " +
	"CAP_MAC_OVERRIDE CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_BPF CAP_PERFMON CAP_CHECKPOINT_RESTORE")

func words(w ...string) *regexp.Regexp {
	return regexp.MustCompile("^(" + strings.Join(w, "|") + ")$")
}

// readUnit reads a unit strictly: each section and directive is known, appears once, and has a
// valid value. It returns the values by SECTION.DIRECTIVE.
func readUnit(src string) (map[string]string, error) {
	values := map[string]string{}
	section := ""
	for i, line := range strings.Split(src, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		if s, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSuffix(s, "]")
			if unitKeys[section] == nil {
				return nil, fmt.Errorf("line %d: section %s", i+1, line)
			}
			continue
		}
		key, value, found := strings.Cut(line, "=")
		pattern := unitKeys[section][key]
		id := section + "." + key
		switch _, twice := values[id]; {
		case !found || pattern == nil:
			return nil, fmt.Errorf("line %d: directive %s of section %q", i+1, key, section)
		case twice:
			return nil, fmt.Errorf("line %d: %s again", i+1, key)
		case !pattern.MatchString(value):
			return nil, fmt.Errorf("line %d: %s: value %q", i+1, key, value)
		}
		values[id] = value
	}
	for c := range strings.FieldsSeq(strings.TrimPrefix(values["Service.CapabilityBoundingSet"], "~")) {
		if !slices.Contains(capabilities, c) {
			return nil, fmt.Errorf("capability %s", c)
		}
	}
	return values, nil
}

func TestUnit(t *testing.T) {
	src := read(t, "systemd/fre.service")
	unit, err := readUnit(src)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"Service.ExecStart", "Service.Delegate", "Service.KillMode", "Service.OOMPolicy", "Install.WantedBy"} {
		if unit[id] == "" {
			t.Errorf("no %s", id)
		}
	}
	longerThanDrain(t, unit["Service.TimeoutStopSec"], strings.Fields(unit["Service.ExecStart"]))

	for _, tt := range []struct{ name, old, changed string }{
		{"unknown directive", "OOMPolicy=", "OOMPolice="},
		{"unknown section", "[Install]", "[Installed]"},
		{"directive of another section", "[Service]\n", ""},
		{"bad flag", "Delegate=yes", "Delegate=ja"},
		{"twice", "Delegate=yes", "Delegate=yes\nDelegate=yes"},
		{"no capability", "CAP_SYS_BOOT", "CAP_SYS_BOOTS"},
		{"capability of the engine's", "CAP_BPF", "CAP_LEASE CAP_BPF"},
		{"no value", "KillMode=mixed", "KillMode="},
		{"relative program", "ExecStart=/", "ExecStart="},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := strings.Replace(src, tt.old, tt.changed, 1)
			if _, err := readUnit(bad); bad == src || err == nil {
				t.Errorf("%q for %q: no error", tt.changed, tt.old)
			}
		})
	}

	// systemd decides if present: systemd-analyze prints nothing about a correct unit.
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("no systemd-analyze here: its part of the check is not made")
		return
	}
	verify := func(src string) string {
		file := filepath.Join(t.TempDir(), "fre.service")
		src = strings.ReplaceAll(src, "/usr/local/bin/fre", "/bin/true") // the program must exist
		if err := os.WriteFile(file, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "--man=no", "verify", file).CombinedOutput()
		if err != nil && len(out) == 0 {
			t.Fatal(err)
		}
		return string(out)
	}
	if said := verify(src); said != "" {
		t.Errorf("systemd-analyze verify:\n%s", said)
	}
	if verify(strings.Replace(src, "OOMPolicy=", "OOMPolice=", 1)) == "" {
		t.Error("systemd-analyze verify has nothing to say about an unknown directive")
	}
}
