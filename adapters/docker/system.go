package docker

import (
	"net/http"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/api/types/system"
)

// ping answers GET and HEAD. Clients negotiate by the headers. Builder-Version 1 keeps clients
// from using BuildKit.
func (s *server) ping(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	h.Set("Builder-Version", "1")
	h.Set("Swarm", "inactive")
	h.Set("Cache-Control", "no-cache, no-store, must-revalidate")
	h.Set("Pragma", "no-cache")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", "2")
	if r.Method == http.MethodHead {
		h.Set("Content-Length", "0")
		return nil
	}
	_, _ = w.Write([]byte("OK")) // the client may have disconnected
	return nil
}

func (s *server) version(w http.ResponseWriter, _ *http.Request) error {
	v := s.cfg.Version
	newest, oldest := "1."+strconv.Itoa(maxVersion), "1."+strconv.Itoa(minVersion)
	return reply(w, http.StatusOK, system.VersionResponse{
		Platform: system.PlatformInfo{Name: "FRE: Function Runtime Environment"},
		Components: []system.ComponentVersion{{Name: "Engine", Version: v.Version, Details: map[string]string{
			"ApiVersion": newest, "MinAPIVersion": oldest, "Experimental": "false", "Arch": v.Arch, "Os": v.OS, "GitCommit": v.Commit, "GoVersion": v.Go, "KernelVersion": s.host.kernel,
		}}},
		Version: v.Version, APIVersion: newest, MinAPIVersion: oldest, GitCommit: v.Commit, GoVersion: v.Go,
		Os: v.OS, Arch: v.Arch, KernelVersion: s.host.kernel,
	})
}

// oldInfo has the fields that clients before API version 1.50 expect.
type oldInfo struct {
	system.Info
	BridgeNfIptables  bool
	BridgeNfIP6tables bool `json:"BridgeNfIp6tables"`
}

// info answers GET /info, for docker info. The flags report every kind of limit as supported.
func (s *server) info(w http.ResponseWriter, r *http.Request) error {
	running, stopped := 0, 0
	for _, c := range s.containers(true) {
		if c.running() {
			running++
		} else {
			stopped++
		}
	}
	images, _ := s.engine.ImageList()
	info := system.Info{
		ID: "fre-" + s.host.name, Name: s.host.name, ServerVersion: s.cfg.Version.Version,
		Containers: running + stopped, ContainersRunning: running, ContainersStopped: stopped,
		Images: len(images), SystemTime: time.Now().Format(time.RFC3339Nano),
		Driver: graphDriver.Name, DriverStatus: [][2]string{{"Files", "hard-linked objects, shared by all images"}},
		Plugins:     system.PluginsInfo{Volume: []string{"local"}, Network: []string{"bridge", "host", "null"}, Log: []string{"json-file"}},
		MemoryLimit: true, SwapLimit: true, CPUCfsPeriod: true, CPUCfsQuota: true, CPUShares: true, CPUSet: true, PidsLimit: true,
		IPv4Forwarding: true, NFd: -1, NGoroutines: runtime.NumGoroutine(),
		LoggingDriver: "json-file", CgroupDriver: "none", CgroupVersion: s.host.cgroup,
		KernelVersion: s.host.kernel, OperatingSystem: s.host.os, OSType: "linux", Architecture: archNames[s.host.arch],
		NCPU: runtime.NumCPU(), MemTotal: s.host.memory,
		IndexServerAddress: "https://index.docker.io/v1/",
		RegistryConfig: &registry.ServiceConfig{
			InsecureRegistryCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, IndexConfigs: map[string]*registry.IndexInfo{}, Mirrors: []string{},
		},
		DockerRootDir: s.engine.StateDir(),
		Runtimes:      map[string]system.RuntimeWithStatus{"fre": {Runtime: system.Runtime{Path: "fre"}}}, DefaultRuntime: "fre",
		Swarm:           swarm.Info{LocalNodeState: swarm.LocalNodeStateInactive},
		SecurityOptions: []string{"name=seccomp,profile=builtin", "name=userns"},
		Labels:          []string{},
	}
	if versionOf(r) < 50 { // clients of these versions warn if the fields are false
		return reply(w, http.StatusOK, oldInfo{info, true, true})
	}
	return reply(w, http.StatusOK, info)
}

// archNames maps Go's architectures to uname's.
var archNames = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
