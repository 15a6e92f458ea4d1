package golang

import (
	"os"
	"path/filepath"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// Config is FRE's own configuration of the go command. It implements image.ToolConfig.
type Config struct {
	Proxy   string `yaml:"proxy"`   // GOPROXY
	Private string `yaml:"private"` // GOPRIVATE
	SumDB   string `yaml:"sumdb"`   // GOSUMDB
}

// Settings are the host's settings of the go command.
type Settings struct {
	Env   []string // GOPROXY, GOPRIVATE, …
	Netrc string   // host path of the passwords for sites of Go modules (netrc(5)), "" for none
}

// Read reads Go's environment, the file of go env -w, and the place of the user's .netrc.
func (c Config) Read(h image.Host, s *image.Settings) (certificates []string, err error) {
	var own Settings
	if own.Env, err = goEnv(h, map[string]string{"GOPROXY": c.Proxy, "GOPRIVATE": c.Private, "GOSUMDB": c.SumDB}); err != nil {
		return nil, err
	}
	if own.Netrc = h.Getenv("NETRC"); own.Netrc == "" && h.Home != "" {
		own.Netrc = filepath.Join(h.Home, ".netrc")
	}
	if _, err := os.Stat(own.Netrc); err != nil {
		own.Netrc = ""
	}
	*s = s.With(own)
	return nil, nil
}

// goVariables say where Go modules come from and how they are verified
// (go.dev/ref/mod#environment-variables).
var goVariables = []string{"GOPROXY", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOSUMDB", "GOINSECURE"}

// goEnv takes each variable from FRE's configuration, the environment, or the file of go env -w.
func goEnv(h image.Host, over map[string]string) ([]string, error) {
	file := h.Getenv("GOENV")
	if config := h.ConfigHome(); file == "" && h.Home != "" {
		file = filepath.Join(config, "go/env")
	}
	values := map[string]string{}
	if file != "" && file != "off" {
		list, err := install.ReadINI(file)
		if err != nil {
			return nil, err
		}
		for _, v := range list {
			values[v.Key] = v.Value
		}
	}
	var env []string
	for _, name := range goVariables {
		if v := image.FirstSet(over[name], h.Getenv(name), values[name]); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env, nil
}
