package docker

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// anyImage is a store that has every image.
func anyImage(string) error { return nil }

// plain is what docker 28 sends for `docker run IMAGE true`, shortened.
const plain = `{"Hostname":"","Domainname":"","User":"","AttachStdin":false,"AttachStdout":true,"AttachStderr":true,"Tty":false,"OpenStdin":false,"StdinOnce":false,
"Env":null,"Cmd":["true"],"Image":"app","Volumes":{},"WorkingDir":"","Entrypoint":null,"OnBuild":null,"Labels":{},
"HostConfig":{"Binds":null,"ContainerIDFile":"","LogConfig":{"Type":"","Config":{}},"NetworkMode":"bridge","PortBindings":{},"RestartPolicy":{"Name":"no","MaximumRetryCount":0},
"AutoRemove":false,"VolumeDriver":"","VolumesFrom":null,"ConsoleSize":[24,80],"CapAdd":null,"CapDrop":null,"CgroupnsMode":"","Dns":[],"DnsOptions":[],"DnsSearch":[],"ExtraHosts":null,
"GroupAdd":null,"IpcMode":"","Cgroup":"","Links":null,"OomScoreAdj":0,"PidMode":"","Privileged":false,"PublishAllPorts":false,"ReadonlyRootfs":false,"SecurityOpt":null,"UTSMode":"",
"UsernsMode":"","ShmSize":0,"Isolation":"","CpuShares":0,"Memory":0,"NanoCpus":0,"CgroupParent":"","BlkioWeight":0,"BlkioWeightDevice":[],"CpuPeriod":0,"CpuQuota":0,
"CpuRealtimePeriod":0,"CpusetCpus":"","Devices":[],"DeviceCgroupRules":null,"DeviceRequests":null,"MemoryReservation":0,"MemorySwap":0,"MemorySwappiness":-1,"OomKillDisable":false,
"PidsLimit":0,"Ulimits":[],"CpuCount":0,"CpuPercent":0,"IOMaximumIOps":0,"IOMaximumBandwidth":0,"MaskedPaths":null,"ReadonlyPaths":null},
"NetworkingConfig":{"EndpointsConfig":{"bridge":{"IPAMConfig":null,"Links":null,"Aliases":null,"MacAddress":"","NetworkID":""}}}}`

// TestParseCreation: each supported option reaches the container's configuration.
func TestParseCreation(t *testing.T) {
	c, err := parseCreation([]byte(plain), anyImage)
	if err != nil {
		t.Fatal(err)
	}
	if c.Image != "app" || c.network != networkBridge || len(c.Cmd) != 1 || c.Entrypoint != nil || c.work || c.readOnly {
		t.Errorf("a plain creation: %+v", c)
	}
	c, err = parseCreation([]byte(`{"Image":"app","Cmd":"ls","Entrypoint":["sh","-c"],"StopSignal":"USR1","Volumes":{"/work":{}},"HostConfig":{
		"NetworkMode":"none","Memory":67108864,"MemorySwap":67108864,"NanoCpus":1500000000,"PidsLimit":7,"ReadonlyRootfs":true,"AutoRemove":true,
		"Tmpfs":{"/tmp":"rw,size=8m"},"StorageOpt":{"size":"1g"},"Ulimits":[{"Name":"nofile","Soft":99,"Hard":99}],"SecurityOpt":["no-new-privileges"],"CapDrop":["ALL"],"CapAdd":["CAP_CHOWN"],"GroupAdd":["7"],
		"Binds":["fre-work:/work:ro"],"Mounts":[{"Type":"volume","Source":"fre-work","Target":"/work"}]}}`), anyImage)
	if err != nil {
		t.Fatal(err)
	}
	if c.network != networkNone || c.memoryBytes != 64<<20 || c.cpuMillis != 1500 || c.pids != 7 || !c.readOnly || !c.autoRemove ||
		c.tmpBytes != 8<<20 || c.scratch != 1<<30 || c.files != 99 || !c.work || c.Cmd[0] != "ls" || len(c.Entrypoint) != 2 || c.stopSignal != 10 ||
		len(c.capDrop) != 1 || len(c.capAdd) != 1 || len(c.groups) != 1 {
		t.Errorf("a full creation: %+v", c)
	}
	if c, err := parseCreation([]byte(`{"Image":"app","WorkingDir":"/tmp/"}`), anyImage); err != nil || c.config("").Dir != "/tmp" {
		t.Errorf("directory with a slash at its end: %+v, %v", c, err)
	}
	if c, err := parseCreation([]byte(`{"Image":"app","HostConfig":{"Annotations":{"a":"b"}}}`), anyImage); err != nil || c.config("").Annotations["a"] != "b" {
		t.Errorf("annotations: %+v, %v", c, err)
	}
	if c, err := parseCreation([]byte(`{"Image":"app","HostConfig":{"CpuQuota":50000}}`), anyImage); err != nil || c.cpuMillis != 500 {
		t.Errorf("quota without period: %+v, %v", c, err)
	}
}

// TestEnvironment: a name without a value removes the image's variable.
func TestEnvironment(t *testing.T) {
	for _, test := range []struct{ given, set, unset []string }{
		{nil, nil, nil},
		{[]string{"A=1", "B=", "A=2=3"}, []string{"B=", "A=2=3"}, nil},
		{[]string{"A=1", "B", "A"}, nil, []string{"B", "A"}},
		{[]string{"A", "A=1"}, []string{"A=1"}, nil},
	} {
		set, unset, err := environment(test.given)
		if !slices.Equal(set, test.set) || !slices.Equal(unset, test.unset) || err != nil {
			t.Errorf("environment(%q) = %q, %q, %v, want %q, %q", test.given, set, unset, err, test.set, test.unset)
		}
	}
}

// TestParseCreationRefuses: an option that would change the container is refused if FRE does not
// support it. No host directory, device or privilege is available.
func TestParseCreationRefuses(t *testing.T) {
	for _, test := range []struct {
		body   string
		status int
		want   string
	}{
		{``, 400, "EOF"},
		{`{"Image":3}`, 400, "Image must be a string"},
		{`{}`, 400, "name the image"},
		{`{"Image":"a","Env":["=x"]}`, 400, "no name"},
		{`{"Image":"a","StopSignal":"NOPE"}`, 400, "invalid signal"},
		{`{"Image":"a","MacAddress":"02:42:ac:11:00:02"}`, 501, "--mac-address"},
		{`{"Image":"a","Healthcheck":{"Test":["CMD","x"]}}`, 501, "health checks"},
		{`{"Image":"a","Volumes":{"/data":{}}}`, 501, "-v /work"},
		{`{"Image":"a","HostConfig":{"Privileged":true}}`, 501, "privileged"},
		{`{"Image":"a","HostConfig":{"Devices":[{"PathOnHost":"/dev/kvm"}]}}`, 501, "host devices"},
		{`{"Image":"a","HostConfig":{"Binds":["/etc:/work"]}}`, 501, "mounts of the host's /etc"},
		{`{"Image":"a","HostConfig":{"Binds":["/work:/etc"]}}`, 501, "volumes at /etc"},
		{`{"Image":"a","HostConfig":{"Binds":["/work/..:/work"]}}`, 501, "mounts of the host's"},
		{`{"Image":"a","HostConfig":{"Binds":["data:/work"]}}`, 501, "FRE has no custom volumes (data)"},
		{`{"Image":"a","HostConfig":{"Mounts":[{"Type":"volume","Source":"data","Target":"/work"}]}}`, 501, "FRE has no custom volumes (data)"},
		{`{"Image":"a","HostConfig":{"Binds":["mine:/work"]}}`, 501, "fre-work:/work"},
		{`{"Image":"a","HostConfig":{"Binds":["fre-work:/work:bad"]}}`, 400, "rw or ro"},
		{`{"Image":"a","HostConfig":{"Mounts":[{"Type":"bind","Source":"/","Target":"/work"}]}}`, 501, "bind mounts"},
		{`{"Image":"a","HostConfig":{"NetworkMode":"mine"}}`, 400, "network mine not found"},
		{`{"Image":"a","HostConfig":{"NetworkMode":"container:x"}}`, 501, "shared network"},
		{`{"Image":"a","HostConfig":{"PidMode":"host"}}`, 501, "--pid"},
		{`{"Image":"a","HostConfig":{"IpcMode":"host"}}`, 501, "IpcMode"},
		{`{"Image":"a","HostConfig":{"CapAdd":["SYS_ADMIN"]}}`, 501, "--cap-add"},
		{`{"Image":"a","HostConfig":{"SecurityOpt":["seccomp=unconfined"]}}`, 501, "seccomp=unconfined"},
		{`{"Image":"a","HostConfig":{"RestartPolicy":{"Name":"always"}}}`, 501, "restart policies"},
		{`{"Image":"a","HostConfig":{"PortBindings":{"80/tcp":[{"HostPort":"80"}]}}}`, 501, "gateway"},
		{`{"Image":"a","HostConfig":{"Memory":1}}`, 400, "6MB"},
		{`{"Image":"a","HostConfig":{"Memory":67108864,"MemorySwap":-1}}`, 501, "swap"},
		{`{"Image":"a","HostConfig":{"NanoCpus":1}}`, 400, "0.001"},
		{`{"Image":"a","HostConfig":{"PidsLimit":-1}}`, 501, "any number of processes"},
		{`{"Image":"a","HostConfig":{"MemorySwappiness":50}}`, 501, "--memory-swappiness"},
		{`{"Image":"a","HostConfig":{"MaskedPaths":[]}}`, 501, "systempaths"},
		{`{"Image":"a","HostConfig":{"ReadonlyPaths":[]}}`, 501, "systempaths"},
		{`{"Image":"a","HostConfig":{"Isolation":"hyperv"}}`, 501, "--isolation"},
		{`{"Image":"a","HostConfig":{"VolumeDriver":"x"}}`, 501, "volume drivers"},
		{`{"Image":"a","HostConfig":{"Mounts":[{"Type":"volume","Target":"/work","VolumeOptions":{"Subpath":"x"}}]}}`, 501, "a part of a volume"},
		{`{"Image":"a","HostConfig":{"Mounts":[{"Type":"volume","Target":"/work","VolumeOptions":{"DriverConfig":{"Name":"x"}}}]}}`, 501, "by a driver"},
		{`{"Image":"a","HostConfig":{"Mounts":[{"Type":"tmpfs","Target":"/tmp","TmpfsOptions":{"Mode":448}}]}}`, 501, "tmpfs options"},
		{`{"Image":"a","HostConfig":{"Ulimits":[{"Name":"nofile","Soft":-1,"Hard":-1}]}}`, 501, "ulimit nofile"},
		{`{"Image":"a","HostConfig":{"Ulimits":[{"Name":"core","Soft":1,"Hard":1}]}}`, 501, "ulimit core"},
		{`{"Image":"a","HostConfig":{"Tmpfs":{"/run":""}}}`, 501, "tmpfs at /run"},
		{`{"Image":"a","HostConfig":{"Tmpfs":{"/tmp":"size=8m,noexec"}}}`, 501, "tmpfs option noexec"},
		{`{"Image":"a","HostConfig":{"Tmpfs":{"/tmp":"size=x"}}}`, 400, "not a size"},
		{`{"Image":"a","HostConfig":{"StorageOpt":{"size":"much"}}}`, 400, "not a size"},
		{`{"Image":"a","HostConfig":{"SomethingNew":{"a":1}}}`, 501, "HostConfig.SomethingNew"},
		{`{"Image":"a","NetworkingConfig":{"EndpointsConfig":{"other":{}}}}`, 501, "second network"},
		{`{"Image":"a","HostConfig":{"NetworkMode":"bridge"},"NetworkingConfig":{"EndpointsConfig":{"bridge":{"IPAMConfig":{"IPv4Address":"172.17.0.9"}}}}}`, 501, "IPAMConfig"},
	} {
		_, err := parseCreation([]byte(test.body), anyImage)
		var e *statusError
		if !errors.As(err, &e) || e.status != test.status || !strings.Contains(e.message, test.want) {
			t.Errorf("parseCreation(%s): %v, want status %d and %q", test.body, err, test.status, test.want)
		}
	}
}

// FuzzParseCreation: no input crashes the parser of a creation.
func FuzzParseCreation(f *testing.F) {
	f.Add([]byte(plain))
	f.Add([]byte(`{"Image":"a","Cmd":"x","HostConfig":{"Binds":["fre-work:/work:ro"],"Tmpfs":{"/tmp":"size=8m"},"Mounts":[{"Type":"tmpfs","Target":"/tmp"}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := parseCreation(body, anyImage)
		if err == nil && c.Image == "" {
			t.Error("accepted without an image")
		}
		if err != nil {
			if status, _ := statusOf(err); status == http.StatusInternalServerError {
				t.Errorf("status 500: %v", err)
			}
		}
	})
}
