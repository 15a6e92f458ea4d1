package deploy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of a file.
type manifests struct {
	namespace *corev1.Namespace
	config    *corev1.ConfigMap
	engines   *appsv1.DaemonSet
	service   *corev1.Service
}

// readManifests reads objects strictly: unknown and repeated fields, unknown kinds and a second
// object of a kind are errors.
func readManifests(src string) (*manifests, error) {
	m := new(manifests)
	seen := map[string]bool{}
	for doc := range strings.SplitSeq(src, "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			return nil, err
		}
		id := kind.APIVersion + " " + kind.Kind
		var to any
		switch id {
		case "v1 Namespace":
			m.namespace = new(corev1.Namespace)
			to = m.namespace
		case "v1 ConfigMap":
			m.config = new(corev1.ConfigMap)
			to = m.config
		case "apps/v1 DaemonSet":
			m.engines = new(appsv1.DaemonSet)
			to = m.engines
		case "v1 Service":
			m.service = new(corev1.Service)
			to = m.service
		}
		if to == nil || seen[id] {
			return nil, fmt.Errorf("object %q: unknown, or a second one", id)
		}
		seen[id] = true
		if err := yaml.UnmarshalStrict([]byte(doc), to); err != nil {
			return nil, fmt.Errorf("%s: %w", id, err)
		}
	}
	if len(seen) != 4 {
		return nil, fmt.Errorf("objects: %v", seen)
	}
	return m, nil
}

// chartValues are the values of the chart nats 2.14.2 (values.yaml) for use in the example.
type chartValues struct {
	Config struct {
		Cluster struct {
			Enabled  bool `json:"enabled"`
			Replicas int  `json:"replicas"`
		} `json:"cluster"`
		JetStream struct {
			Enabled   bool `json:"enabled"`
			FileStore struct {
				PVC struct {
					Size string `json:"size"`
				} `json:"pvc"`
			} `json:"fileStore"`
		} `json:"jetstream"`
		Merge struct {
			Authorization struct {
				User     string `json:"user"`
				Password string `json:"password"`
			} `json:"authorization"`
		} `json:"merge"`
	} `json:"config"`
	Container struct {
		Env map[string]corev1.EnvVar `json:"env"`
	} `json:"container"`
	PodTemplate struct {
		TopologySpreadConstraints map[string]corev1.TopologySpreadConstraint `json:"topologySpreadConstraints"`
	} `json:"podTemplate"`
	NATSBox struct {
		Enabled bool `json:"enabled"`
	} `json:"natsBox"`
}

func TestKubernetes(t *testing.T) {
	src := read(t, "kubernetes/fre.yaml")
	m, err := readManifests(src)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{m.config.Namespace, m.engines.Namespace, m.service.Namespace} {
		if ns != m.namespace.Name {
			t.Errorf("namespace %q, want %q", ns, m.namespace.Name)
		}
	}
	template := &m.engines.Spec.Template
	pod := &template.Spec
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers, want one", len(pod.Containers))
	}
	c := &pod.Containers[0]
	if s := c.SecurityContext; s == nil || s.Privileged == nil || !*s.Privileged {
		t.Error("the engine is not privileged")
	}
	if m.namespace.Labels["pod-security.kubernetes.io/enforce"] != "privileged" {
		t.Error("the namespace takes no privileged pods")
	}
	if pod.HostPID || pod.HostNetwork || pod.HostIPC {
		t.Error("the pod has the host's process ids, network or IPC, which it does not need")
	}
	selector, err := metav1.LabelSelectorAsSelector(m.engines.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]labels.Selector{"DaemonSet": selector, "Service": labels.SelectorFromSet(m.service.Spec.Selector)} {
		if s.Empty() || !s.Matches(labels.Set(template.Labels)) {
			t.Errorf("%s selects %s; its pods are %v", what, s, template.Labels)
		}
	}
	if m.service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Error("the service is not headless")
	}
	if len(m.service.Spec.Ports) != 1 || len(c.Ports) != 1 {
		t.Fatalf("ports of the service and the pod: %v, %v; want one each", m.service.Spec.Ports, c.Ports)
	}
	ports := []string{m.service.Spec.Ports[0].TargetPort.StrVal}
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		switch {
		case p == nil:
			t.Error("a probe is missing")
		case p.HTTPGet != nil:
			ports = append(ports, p.HTTPGet.Port.StrVal)
		case p.TCPSocket != nil:
			ports = append(ports, p.TCPSocket.Port.StrVal)
		}
	}
	if len(ports) != 4 || slices.ContainsFunc(ports, func(p string) bool { return p != c.Ports[0].Name }) {
		t.Errorf("service and probes go to the ports %q; the container has %q", ports, c.Ports[0].Name)
	}
	mounts := map[string]string{}
	for _, v := range c.VolumeMounts {
		mounts[v.Name] = v.MountPath
	}
	for _, v := range pod.Volumes {
		if mounts[v.Name] == "" {
			t.Errorf("volume %s is mounted nowhere", v.Name)
		}
		switch {
		case v.ConfigMap != nil && v.ConfigMap.Name != m.config.Name:
			t.Errorf("volume %s: no ConfigMap %q", v.Name, v.ConfigMap.Name)
		case v.HostPath != nil && mounts[v.Name] != "/var/lib/fre":
			t.Errorf("the state is mounted at %q", mounts[v.Name])
		}
		delete(mounts, v.Name)
	}
	if len(mounts) > 0 {
		t.Errorf("mounts without a volume: %v", mounts)
	}
	if len(c.Args) != 1 || pod.TerminationGracePeriodSeconds == nil {
		t.Fatal("no arguments, or no time to stop")
	}
	longerThanDrain(t, fmt.Sprint(*pod.TerminationGracePeriodSeconds, "s"), strings.Fields(c.Args[0]))

	for _, tt := range []struct{ name, old, changed string }{
		{"unknown field", "hostPath:", "hostDir:"},
		{"unknown field of the pod", "terminationGracePeriodSeconds:", "gracePeriod:"},
		{"field twice", "clusterIP: None", "clusterIP: None\n  clusterIP: None"},
		{"another kind", "kind: DaemonSet", "kind: DemonSet"},
		{"another version", "apiVersion: apps/v1", "apiVersion: apps/v1beta1"},
		{"no number", "containerPort: 8080", "containerPort: http"},
		{"no YAML", "spec:\n", "spec: [\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bad := strings.Replace(src, tt.old, tt.changed, 1)
			if _, err := readManifests(bad); bad == src || err == nil {
				t.Errorf("%q for %q: no error", tt.changed, tt.old)
			}
		})
	}
}

// The chart's values fit the engines' configuration: replicas, user, password.
func TestNATSChart(t *testing.T) {
	src := read(t, "kubernetes/nats-values.yaml")
	var values chartValues
	if err := yaml.UnmarshalStrict([]byte(src), &values); err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(src+"promExporters: {}\n"), new(chartValues)); err == nil {
		t.Error("an unknown value is no error")
	}
	m, err := readManifests(read(t, "kubernetes/fre.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Events struct {
			NATS     string `json:"nats"`
			Replicas int    `json:"replicas"`
		} `json:"events"`
	}
	if err := yaml.Unmarshal([]byte(m.config.Data["fre.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	c := &values.Config
	if !c.JetStream.Enabled || !c.Cluster.Enabled || c.Cluster.Replicas < config.Events.Replicas {
		t.Errorf("a cluster %+v with JetStream %+v cannot keep %d copies", c.Cluster, c.JetStream, config.Events.Replicas)
	}
	if want := "nats://" + c.Merge.Authorization.User + ":NATS_PASSWORD@nats:4222"; config.Events.NATS != want {
		t.Errorf("engines connect to %q, want %q", config.Events.NATS, want)
	}
	if p := c.Merge.Authorization.Password; p != "<< $NATS_PASSWORD >>" {
		t.Errorf("the servers' password is %q", p)
	}
	engine := m.engines.Spec.Template.Spec.Containers[0].Env
	i := slices.IndexFunc(engine, func(e corev1.EnvVar) bool { return e.Name == "NATS_PASSWORD" })
	server, ok := values.Container.Env["NATS_PASSWORD"]
	if i < 0 || !ok || server.ValueFrom == nil || !reflect.DeepEqual(engine[i].ValueFrom, server.ValueFrom) {
		t.Error("engines and servers have the password from different places")
	}
}
