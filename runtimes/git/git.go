// Package git fetches functions' code from git repositories. It runs git in a build step's sandbox:
// no process outside reads the server's data.
//
// A credential of the engine's configuration is used only for a template that names it and an
// address below the credential's own. Only the fetching step sees the credential.
//
// If the context carries an [outward.Rule], git connects through a proxy of the engine's, for
// submodules and redirects too.
package git

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/internal/outward"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/template"
)

//go:embed fetch.sh
var fetch []byte

// Repository implements image.Repository.
type Repository struct{}

// Fetch checks a commit out; see image.Repository.
func (Repository) Fetch(ctx context.Context, s *image.Step, code *template.GitCode, commit string) (dir, id string, err error) {
	at, err := parse(code.URL)
	if err != nil {
		return "", "", &template.FieldError{Field: "code.git.url", Message: err.Error()}
	}
	b, err := install.NewBench(s)
	if err != nil {
		return "", "", err
	}
	credential, err := choose(s.Settings.Git, code.Auth, at)
	if err != nil {
		return "", "", err
	}
	more, err := lay(b, credential)
	if err != nil {
		return "", "", err
	}
	env := append(environment(at, code, commit), more...)
	proxy, err := wayOut(ctx, s, at)
	if err != nil {
		return "", "", err
	}
	if proxy != nil {
		defer func() { err = errors.Join(err, proxy.Close()) }()
		env = append(env, "FRE_PROXY="+proxy.URL())
	}
	rootfs, err := s.Tools(ctx, "native", "git", "openssh-client", "socat")
	if err != nil {
		return "", "", err
	}
	if err := b.Write("fetch.sh", fetch); err != nil {
		return "", "", err
	}
	words, err := b.Run(ctx, install.Tool{Rootfs: rootfs, Network: true, Env: env, Args: []string{"/bin/sh", "/work/fetch.sh"}})
	if err != nil && proxy != nil && proxy.Refused() != nil { // a redirect or a submodule led to a refused host
		return "", "", &template.FieldError{Field: "code.git", Message: "code.git: " + proxy.Refused().Error()}
	}
	if err != nil {
		return "", "", failed(err, words, code, s.Settings.Git)
	}
	out, err := b.Read("commit")
	if err != nil {
		return "", "", fmt.Errorf("git fetch: %w", err)
	}
	return filepath.Join(b.Dir, "tree"), strings.TrimSpace(string(out)), nil
}

// environment returns the variables of fetch.sh and git.
func environment(at *url.URL, code *template.GitCode, commit string) []string {
	env := []string{
		"FRE_URL=" + at.String(), "FRE_REF=" + code.Ref, "FRE_COMMIT=" + commit,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/work/gitconfig", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=/bin/true", "GIT_LFS_SKIP_SMUDGE=1",
		"GIT_SSH_COMMAND=ssh -F none -o BatchMode=yes -o IdentitiesOnly=yes -o IdentityFile=/work/key -o StrictHostKeyChecking=yes -o UserKnownHostsFile=/work/known_hosts -o GlobalKnownHostsFile=none",
	}
	if code.Submodules {
		env = append(env, "FRE_SUBMODULES=1")
	}
	return env
}

// wayOut returns the proxy that lets git reach only hosts that the caller's rule allows; nil
// without a rule. The caller closes the proxy.
func wayOut(ctx context.Context, s *image.Step, at *url.URL) (*outward.Proxy, error) {
	rule := outward.Of(ctx)
	if rule == nil {
		return nil, nil
	}
	if err := rule.Check(ctx, at); err != nil {
		return nil, &template.FieldError{Field: "code.git.url", Message: "code.git.url: " + err.Error()}
	}
	return rule.OpenProxy(s.Settings.Env)
}

var scp = regexp.MustCompile(`^([A-Za-z0-9_.-]+@[A-Za-z0-9.-]+):(.+)$`)

// parse reads an address: a URL or scp(1)'s form.
func parse(address string) (*url.URL, error) {
	if m := scp.FindStringSubmatch(address); m != nil && !strings.Contains(address, "://") {
		address = "ssh://" + m[1] + "/" + strings.TrimPrefix(m[2], "/")
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || !slices.Contains([]string{"https", "http", "ssh"}, u.Scheme) || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("code.git.url is not the address of a repository: write https://HOST/PATH, ssh://USER@HOST/PATH or USER@HOST:PATH")
	}
	if strings.HasPrefix(u.Host, "-") || slices.Contains(strings.Split(u.Path, "/"), "..") {
		return nil, errors.New("code.git.url has an invalid host or path (.. or a leading -)")
	}
	return u, nil
}

// choose returns the credential that the template names; nil without one.
func choose(known []image.GitCredential, name string, at *url.URL) (*image.GitCredential, error) {
	if name == "" {
		return nil, nil
	}
	i := slices.IndexFunc(known, func(c image.GitCredential) bool { return c.Name == name })
	if i < 0 {
		return nil, &template.FieldError{Field: "code.git.auth", Message: fmt.Sprintf("the engine's configuration has no credential %q below packages.git%s", name, names(known))}
	}
	if !covers(known[i].URL, at) {
		// The credential's own address is hidden from the template's author.
		return nil, &template.FieldError{Field: "code.git.auth", Message: fmt.Sprintf("the credential %q is for a different address: see packages.git in the engine's configuration", name)}
	}
	return &known[i], nil
}

func names(known []image.GitCredential) string {
	if len(known) == 0 {
		return ""
	}
	list := make([]string, len(known))
	for i, c := range known {
		list[i] = c.Name
	}
	return " (known: " + strings.Join(list, ", ") + ")"
}

// covers reports whether at is prefix or below it. Users are not compared.
func covers(prefix string, at *url.URL) bool {
	p, err := url.Parse(prefix)
	if err != nil || p.Scheme != at.Scheme || p.Host != at.Host {
		return false
	}
	top := strings.TrimSuffix(path.Clean("/"+p.Path), "/")
	return top == "" || strings.HasPrefix(path.Clean("/"+at.Path)+"/", top+"/")
}

// lay writes git's configuration and the credential to the bench. It returns variables for the
// step's environment.
func lay(b *install.Bench, c *image.GitCredential) (env []string, err error) {
	config := `[protocol]
	allow = never
[protocol "https"]
	allow = always
[protocol "http"]
	allow = always
[protocol "ssh"]
	allow = always
[core]
	hooksPath = /dev/null
[transfer]
	fsckObjects = true
[advice]
	detachedHead = false
[credential]
	useHttpPath = true
`
	var key []byte
	switch {
	case c == nil:
	case c.SSHKey != "":
		if key, err = os.ReadFile(c.SSHKey); err != nil {
			return nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
	default:
		token := os.Getenv(c.TokenEnv)
		if c.TokenFile != "" {
			raw, err := os.ReadFile(c.TokenFile)
			if err != nil {
				return nil, fmt.Errorf("credential %s: %w", c.Name, err)
			}
			token = string(raw)
		}
		if token = strings.TrimSpace(token); token == "" || strings.ContainsAny(token, "\x00\n") {
			return nil, fmt.Errorf("credential %s: the token is empty or has several lines", c.Name)
		}
		user := c.Username
		if user == "" {
			user = "git"
		}
		env = []string{"FRE_GIT_USERNAME=" + user, "FRE_GIT_TOKEN=" + token}
		config += fmt.Sprintf("[credential %q]\n\thelper = \"!f() { test \\\"$1\\\" = get && printf 'username=%%s\\\\npassword=%%s\\\\n' \\\"$FRE_GIT_USERNAME\\\" \\\"$FRE_GIT_TOKEN\\\"; }; f\"\n", c.URL)
	}
	known, err := knownHosts(c)
	if err != nil {
		return nil, err
	}
	return env, errors.Join(b.Write("gitconfig", []byte(config)), b.Write("key", key), b.Write("known_hosts", known))
}

// knownHosts returns the keys of servers: the credential's own file, or the files of host and user.
func knownHosts(c *image.GitCredential) ([]byte, error) {
	if c != nil && c.KnownHosts != "" {
		known, err := os.ReadFile(c.KnownHosts)
		if err != nil {
			return nil, fmt.Errorf("credential %s: %w", c.Name, err)
		}
		return known, nil
	}
	var known []byte
	files := []string{"/etc/ssh/ssh_known_hosts"}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".ssh/known_hosts"))
	}
	for _, name := range files {
		more, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		known = append(append(known, more...), '\n')
	}
	return known, nil
}

// failed makes the user's error from git's output.
func failed(err error, words string, code *template.GitCode, known []image.GitCredential) error {
	lines := install.Lines(words, func(l string) bool {
		return strings.HasPrefix(l, "hint:") || strings.HasPrefix(l, "Please make sure you have") || l == "and the repository exists." || strings.HasPrefix(l, "Warning: Identity file")
	}, "fatal:", "error:", "remote:")
	words = strings.Join(lines, "\n")
	field := "code.git"
	switch {
	case strings.Contains(words, "find remote ref"), strings.Contains(words, "not our ref"):
		field = "code.git.ref"
	case strings.Contains(words, "could not read Username"), strings.Contains(words, "Authentication failed"), strings.Contains(words, "terminal prompts disabled"),
		strings.Contains(words, "Permission denied (publickey"), strings.Contains(words, "returned error: 403"):
		field = "code.git.auth"
		if code.Auth == "" {
			words += "\n(name a credential of the engine's configuration, packages.git, in code.git.auth" + names(known) + ")"
		} else {
			words += fmt.Sprintf("\n(the server refuses the credential %s: see packages.git in the engine's configuration)", code.Auth)
		}
	case strings.Contains(words, "Host key verification failed"):
		words += "\n(unknown server key: add a known_hosts file with the key to the credential in packages.git)"
	}
	return install.Failed(err, field, words)
}
