package docker

import (
	"bufio"
	"bytes"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/api/types/volume"
	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/sandbox"
	"github.com/fre-engine/fre/template"
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

// host holds the constant properties of this machine.
type host struct {
	kernel, arch, name, os, cgroup string
	memory                         int64
}

func thisHost() host {
	h := host{arch: runtime.GOARCH, os: "Linux", cgroup: "1"}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.kernel, h.name = unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Nodename[:])
	}
	if text, err := os.ReadFile("/etc/os-release"); err == nil {
		for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
			if name, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
				h.os = strings.Trim(name, `"`)
			}
		}
	}
	var st unix.Statfs_t
	if unix.Statfs("/sys/fs/cgroup", &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		h.cgroup = "2"
	}
	h.memory, _ = sandbox.HostMemory() // 0 if unreadable
	return h
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

// networks returns the network modes of a container, as Docker networks.
func networks() []network.Inspect {
	var out []network.Inspect
	for _, n := range []struct{ name, driver string }{
		{networkBridge, "bridge"}, {networkHost, "host"}, {networkNone, "null"},
	} {
		out = append(out, network.Inspect{Network: network.Network{
			Name: n.name, ID: networkID(n.name), Scope: "local", Driver: n.driver, EnableIPv4: true,
			IPAM: network.IPAM{Driver: "default", Config: []network.IPAMConfig{}}, Options: map[string]string{}, Labels: map[string]string{},
		}, Containers: map[string]network.EndpointResource{}})
	}
	return out
}

// Docker's names of the networks; a template's egress is Docker's bridge.
const (
	networkNone   = "none"
	networkBridge = "bridge"
	networkHost   = "host"
)

func (s *server) networkList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "name", "id", "driver", "scope", "type", "label", "dangling")
	if err != nil {
		return err
	}
	out := []network.Inspect{}
	for _, n := range networks() {
		if f.like("name")(n.Name) && f.like("id")(n.ID) && f.has("driver", n.Driver) && f.has("scope", n.Scope) && f.has("type", "builtin") && f.labels(nil) && f.has("dangling", "false", "0") {
			out = append(out, n)
		}
	}
	return reply(w, http.StatusOK, out)
}

func (s *server) networkInspect(w http.ResponseWriter, r *http.Request) error {
	n, err := findNetwork(r.PathValue("id"))
	if scope := r.URL.Query().Get("scope"); err == nil && scope != "" && scope != n.Scope {
		err = notFound("network %s not found in the scope %s: FRE's networks have the scope %s", n.Name, scope, n.Scope)
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, n)
}

func findNetwork(id string) (network.Inspect, error) {
	for _, n := range networks() {
		if n.Name == id || len(id) >= 3 && strings.HasPrefix(n.ID, id) {
			return n, nil
		}
	}
	return network.Inspect{}, notFound("network %s not found", id)
}

// workVolume is the volume name of the tenant's directory.
const workVolume = "fre-work"

// work describes the only volume: the tenant's persistent directory.
func work() volume.Volume {
	return volume.Volume{Driver: "local", Labels: map[string]string{labelTenant: template.DefaultTenant}, Mountpoint: workDir, Name: workVolume, Options: map[string]string{}, Scope: "local"}
}

func (s *server) volumeList(w http.ResponseWriter, r *http.Request) error {
	f, err := filtersOf(r, "name", "driver", "dangling", "label")
	if err != nil {
		return err
	}
	out := []volume.Volume{}
	if v := work(); f.like("name")(v.Name) && f.has("driver", v.Driver) && f.has("dangling", "false", "0") && f.labels(v.Labels) {
		out = append(out, v)
	}
	return reply(w, http.StatusOK, volume.ListResponse{Volumes: out})
}

func (s *server) volumeInspect(w http.ResponseWriter, r *http.Request) error {
	if err := findVolume(r.PathValue("name")); err != nil {
		return err
	}
	return reply(w, http.StatusOK, work())
}

func findVolume(name string) error {
	if name == workVolume {
		return nil
	}
	return notFound("get %s: no such volume: the only volume is %s, the tenant's directory", name, workVolume)
}
