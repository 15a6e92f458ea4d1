package python

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// uv resolves and installs. Its wheel holds the program at bin/uv.
var uv = install.Program{
	Name: "uv", Version: "0.13.8", Dir: "bin", Keep: func(path string) bool { return path == "uv" },
	Hashes: map[string]string{
		"amd64": "e18a57b8b352eb7c8feb317b9f6f533c8f0ad9673fd6cf34bbe3cf1a9f6a8984",
		"arm64": "0b3e8b1a4f5e405e31e2ff33de8af4744831e9f7338539671efbd8c3c94e791d",
	},
}

// env is uv's environment. uv does not see the host's uv.toml.
func (s *site) env(cache string) []string {
	return append([]string{
		"UV_CACHE_DIR=" + cache, "UV_LINK_MODE=hardlink", "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never", "NO_COLOR=1",
	}, image.SettingsOf[install.PipSettings](s.step.Settings).Env...)
}

// compileArgs have uv pin the requirements of /work/requirements.in, wheels only, in
// /work/requirements.txt.
func (s *site) compileArgs() []string {
	return []string{
		"/function/uv", "pip", "compile", "--no-progress", "--generate-hashes", "--no-header", "--no-annotate",
		"--no-emit-index-url", "--no-emit-find-links", "--only-binary", ":all:",
		"--python", s.python, "--python-version", s.version,
		"--output-file", "/work/requirements.txt", "/work/requirements.in",
	}
}

// pinnedLine is the requirement for exactly one locked package.
func pinnedLine(p image.LockedPackage) string {
	words := []string{p.Name + "==" + p.Version}
	for _, h := range p.Hashes {
		words = append(words, "--hash="+h)
	}
	return strings.Join(words, " ") + "\n"
}

// noAnswer matches uv's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`No solution found|Couldn't parse requirement|Failed to parse|not a valid|Expected `)

// noWheel matches uv's messages that a package has only a source distribution.
var noWheel = regexp.MustCompile(`no usable wheels|building from source is disabled|no wheels with a matching|has no wheels`)

// failed makes the user's error from uv's output.
func failed(err error, words string) error {
	frame := strings.NewReplacer("╰─▶", "", "├─▶", "", "│", "", "×", "", "error: ", "")
	lines := install.Lines(frame.Replace(words), func(l string) bool { return strings.HasPrefix(l, "warning: ") })
	words = strings.Join(lines, "\n")
	if noWheel.MatchString(words) {
		words += "\n(no source distribution to build for the base, either)"
	}
	return install.PackageFailed(err, "pip", words, noAnswer)
}

var pinned = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*) *== *([^ ;\\]+)`)

// parsePinned reads the output of uv pip compile --generate-hashes:
//
//	name==version \
//	    --hash=sha256:… \
//	    --hash=sha256:…
func parsePinned(src []byte) ([]image.LockedPackage, error) {
	r, err := parseRequirements("uv pip compile", src)
	if err != nil {
		return nil, err
	}
	if len(r.files) > 0 || len(r.constraints) > 0 {
		return nil, errors.New("uv pip compile: the answer names further files")
	}
	var out []image.LockedPackage
	for _, q := range r.list {
		m := pinned.FindStringSubmatch(q.text)
		if m == nil || len(q.hashes) == 0 {
			return nil, fmt.Errorf("uv pip compile: no version or no hash for %q", q.text)
		}
		out = append(out, image.LockedPackage{Name: m[1], Version: m[2], Hashes: q.hashes})
	}
	return out, nil
}
