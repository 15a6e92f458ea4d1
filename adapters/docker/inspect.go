package docker

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	types "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/storage"
	"golang.org/x/sys/unix"
)

// containerInspect answers GET /containers/ID/json?size=.
func (s *server) containerInspect(w http.ResponseWriter, r *http.Request) error {
	c, err := s.container(r.PathValue("id"))
	if err != nil {
		return err
	}
	args, config, limits, failure := strings.Fields(c.Command), containerConfig{Hostname: c.Function, Env: []string{}, WorkingDir: workDir}, c.Limits, ""
	config.Cmd = args
	host := map[string]any{
		"NetworkMode": c.network(), "CgroupnsMode": "private", "IpcMode": "private", "Isolation": "", "Privileged": false, "ReadonlyRootfs": true, "CapDrop": []string{"ALL"}, "SecurityOpt": c.Defences,
		"RestartPolicy": types.RestartPolicy{Name: types.RestartPolicyDisabled}, "LogConfig": types.LogConfig{Type: "json-file", Config: map[string]string{}},
	}
	if c.record != nil {
		cfg := c.record.Config
		args, limits, failure = c.record.Args, cfg.Limits, c.record.Error
		config = containerConfig{
			Hostname: cfg.Hostname, User: cfg.User, Env: c.record.Env, Cmd: cfg.Cmd, Entrypoint: cfg.Entrypoint, WorkingDir: cfg.Dir, Tty: cfg.TTY,
			AttachStdin: cfg.OpenStdin, AttachStdout: true, AttachStderr: true, OpenStdin: cfg.OpenStdin, StdinOnce: cfg.StdinOnce, StopSignal: cmp.Or(unix.SignalName(cfg.StopSignal), strconv.Itoa(int(cfg.StopSignal))),
		}
		host["ReadonlyRootfs"], host["AutoRemove"], host["CapAdd"], host["CapDrop"], host["GroupAdd"] = cfg.ReadOnly, cfg.AutoRemove, cfg.CapAdd, cfg.CapDrop, cfg.Groups
		host["ConsoleSize"] = [2]uint16{cfg.Rows, cfg.Columns}
		if len(cfg.Annotations) > 0 {
			host["Annotations"] = cfg.Annotations
		}
	}
	config.Image, config.Labels = c.Image, c.labels()
	host["Memory"], host["MemorySwap"], host["NanoCpus"], host["PidsLimit"] = limits.MemoryBytes, limits.MemoryBytes, limits.CPUMillis*1e6, limits.Pids
	path := ""
	if len(args) > 0 {
		path, args = args[0], args[1:]
	}
	out := map[string]any{
		"Id": c.ID, "Created": stamp(c.made), "Path": path, "Args": args, "Image": c.Digest, "Name": "/" + c.name,
		"State": types.State{
			Status: types.ContainerState(c.state()), Running: c.running(), OOMKilled: c.exit != nil && c.exit.OOMKilled,
			Pid: c.PID, ExitCode: c.exitCode(), Error: failure, StartedAt: stamp(c.started), FinishedAt: stamp(c.finished),
		},
		"ResolvConfPath": "", "HostnamePath": "", "HostsPath": "", "LogPath": "", "RestartCount": 0, "Driver": "fre", "Platform": "linux",
		"MountLabel": "", "ProcessLabel": "", "AppArmorProfile": "", "ExecIDs": nil,
		"HostConfig": host, "GraphDriver": graphDriver, "Mounts": c.mounts(), "Config": config,
		"NetworkSettings": map[string]any{
			"Bridge": "", "SandboxID": "", "SandboxKey": "", "Ports": map[string]any{}, "Networks": map[string]endpoint{c.network(): {NetworkID: networkID(c.network())}},
		},
	}
	if boolOf(r, "size") {
		out["SizeRw"], out["SizeRootFs"] = s.sizes(c)
	}
	return reply(w, http.StatusOK, out)
}

// graphDriver names the store in answers about images and containers.
var graphDriver = storage.DriverData{Name: "fre", Data: map[string]string{}}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "0001-01-01T00:00:00Z"
	}
	return t.UTC().Format(time.RFC3339Nano)
}
