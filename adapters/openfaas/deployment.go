package openfaas

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/template"
)

// deploymentLabel is the image label with the deployment's request.
const deploymentLabel = "fre.openfaas.deployment"

// Labels of a deployment that FRE supports.
const (
	labelMin  = "com.openfaas.scale.min"
	labelMax  = "com.openfaas.scale.max"
	labelZero = "com.openfaas.scale.zero"
	labelIdle = "com.openfaas.scale.zero-duration"
)

// annotationNetwork selects a function's network: none (default) or egress.
const annotationNetwork = "fre.network"

const (
	defaultConcurrency = 8                // for ordinary images, because an OpenFaaS replica handles many events at once
	defaultTimeout     = 30 * time.Second // per event, unless the watchdog's exec_timeout is set
)

// deployment is a deployment request, converted to FRE's terms.
type deployment struct {
	types.FunctionDeployment
	tenant string
	wanted *template.Template // only settings named in the request apply

	drop func(context.Context) error // removes an image pulled for the request; nil: no pull
}

// checkDeployment refuses settings that FRE has not.
func checkDeployment(d *types.FunctionDeployment) error {
	switch {
	case !template.ValidName(d.Service):
		return badRequest("%q is not a name of a function: lower-case letters, digits and dashes, at most 63", d.Service)
	case d.Image == "":
		return badRequest("the deployment names no image")
	case len(d.Constraints) > 0:
		return badRequest("FRE does not choose nodes by constraints: leave constraints out")
	}
	for name, r := range map[string]*types.FunctionResources{"limits": d.Limits, "requests": d.Requests} {
		if r == nil {
			continue
		}
		if cmp.Or(r.NvidiaGPU, r.AmdGPU, r.IntelGPU) != "" {
			return badRequest("%s: functions have no GPUs: leave GPUs out", name)
		}
		if err := checkResources(r); err != nil {
			return badRequest("%s: %v", name, err)
		}
	}
	return nil
}

// parser reads a template: [engine.Engine.ParseTemplate].
type parser func(name string, src []byte) (*template.Template, error)

// newDeployment converts and checks a request. Unsupported settings are refused, with an
// alternative. The template parser checks the other settings, by the rules of templates.
func newDeployment(parse parser, d types.FunctionDeployment, tenant string) (*deployment, error) {
	if err := checkDeployment(&d); err != nil {
		return nil, err
	}
	out := &deployment{FunctionDeployment: d, tenant: tenant}
	spec, err := out.template()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(spec) // JSON is YAML
	if err != nil {
		return nil, fmt.Errorf("deployment of %s: %w", d.Service, err)
	}
	if out.wanted, err = parse("deployment", text); err != nil {
		return nil, templateFault(err)
	}
	return out, nil
}

// templateFault rewrites a template error without line numbers, because the request has no
// lines.
func templateFault(err error) error {
	var fault *template.Error
	if errors.As(err, &fault) {
		return badRequest("%s", fault.Message)
	}
	return err
}

func checkResources(r *types.FunctionResources) error {
	if r.Memory != "" {
		if _, err := template.ParseBytes(r.Memory); err != nil {
			return err
		}
	}
	if r.CPU != "" {
		if _, err := template.ParseCPU(r.CPU); err != nil {
			return err
		}
	}
	return nil
}

// label returns the value of a label, or "".
func (d *deployment) label(name string) string { return valueIn(d.Labels, name) }

func valueIn(m *map[string]string, name string) string {
	if m == nil {
		return ""
	}
	return (*m)[name]
}

// number parses a numeric label or variable into to[key].
func number(name, value string, to map[string]any, key string) error {
	if value == "" {
		return nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return badRequest("%s: %q is not a number", name, value)
	}
	to[key] = n
	return nil
}

// template returns the deployment as the template of an HTTP server.
func (d *deployment) template() (map[string]any, error) {
	env := map[string]string{}
	maps.Copy(env, d.EnvVars)
	if d.EnvProcess != "" {
		env["fprocess"] = d.EnvProcess
	}
	instances, err := d.instances(env["max_inflight"])
	if err != nil {
		return nil, err
	}
	resources, err := d.resources(env["exec_timeout"])
	if err != nil {
		return nil, err
	}
	network := template.NetworkNone
	if n := valueIn(d.Annotations, annotationNetwork); n != "" {
		network = template.NetworkMode(n)
		if network != template.NetworkNone && network != template.NetworkEgress {
			return nil, badRequest("annotation %s: %q is neither none nor egress", annotationNetwork, n)
		}
	}
	spec := map[string]any{
		"id": d.Service, "tenant": d.tenant, "base": "native", "runtime": "http", "handler": "server",
		"env": env, "instances": instances, "resources": resources, "network": network,
	}
	if len(d.Secrets) > 0 {
		spec["secrets"] = d.Secrets
	}
	return spec, nil
}

// instances returns the template's section of that name. inflight is the watchdog's limit of
// requests at the same time, or empty.
func (d *deployment) instances(inflight string) (map[string]any, error) {
	instances := map[string]any{"min": 1, "concurrency": defaultConcurrency}
	if zero := d.label(labelZero); zero != "" {
		on, err := strconv.ParseBool(zero)
		if err != nil {
			return nil, badRequest("%s: %q is neither true nor false", labelZero, zero)
		}
		if on {
			instances["min"] = 0
		}
	}
	if idle := d.label(labelIdle); idle != "" {
		instances["idle"] = idle
	}
	for _, err := range []error{
		number(labelMin, d.label(labelMin), instances, "min"), number(labelMax, d.label(labelMax), instances, "max"),
		number("max_inflight", inflight, instances, "concurrency"),
	} {
		if err != nil {
			return nil, err
		}
	}
	if instances["concurrency"] == 0 { // no limit for the watchdog
		instances["concurrency"] = defaultConcurrency
	}
	return instances, nil
}

// resources returns the template's section of that name. timeout is the watchdog's, or empty.
func (d *deployment) resources(timeout string) (map[string]any, error) {
	resources := map[string]any{"pids": 256, "timeout": defaultTimeout.String()}
	if timeout != "" {
		t, err := parseTimeout(timeout)
		if err != nil || t <= 0 {
			return nil, badRequest("exec_timeout: %q is not a duration, for example 30s", timeout)
		}
		resources["timeout"] = max(t, defaultTimeout).String() // the watchdog enforces a shorter timeout itself
	}
	if l := d.Limits; l != nil {
		if l.Memory != "" {
			resources["memory"] = l.Memory
		}
		if l.CPU != "" {
			resources["cpu"] = l.CPU
		}
	}
	return resources, nil
}

// parseTimeout parses seconds without a unit, or a duration.
func parseTimeout(s string) (time.Duration, error) {
	if seconds, err := strconv.Atoi(s); err == nil {
		return time.Duration(seconds) * time.Second, nil
	}
	return time.ParseDuration(s)
}

// configure applies the deployment to an image's configuration. For a function's image, settings
// absent from the deployment keep the template's values.
func (d *deployment) configure(c *image.Config, function bool) error {
	t := d.wanted
	c.Tenant = d.tenant
	c.Env = image.MergeEnv(c.Env, t.Env)
	c.Secrets = t.Secrets
	if !function {
		c.Instances, c.Resources, c.Network = t.Instances, t.Resources, t.Network
	} else {
		if d.Limits != nil && d.Limits.Memory != "" {
			c.Resources.MemoryBytes = t.Resources.MemoryBytes
		}
		if d.Limits != nil && d.Limits.CPU != "" {
			c.Resources.CPUMillis = t.Resources.CPUMillis
		}
		if valueIn(d.Annotations, annotationNetwork) != "" {
			c.Network = t.Network
		}
		d.scaled(c)
	}
	raw, err := json.Marshal(d.FunctionDeployment)
	if err != nil {
		return fmt.Errorf("deployment of %s: %w", d.Service, err)
	}
	labels := map[string]string{}
	maps.Copy(labels, c.Labels)
	labels[deploymentLabel] = string(raw)
	c.Labels = labels
	return nil
}

// scaled applies the scaling labels to a function's image. By default one replica stays, as in
// OpenFaaS, unless a label or the template says otherwise.
func (d *deployment) scaled(c *image.Config) {
	t := d.wanted
	if c.Instances.Isolation == template.IsolationEvent { // every event has a fresh sandbox, so no instance is kept
		return
	}
	if d.label(labelMax) != "" {
		c.Instances.Max = t.Instances.Max
	}
	if c.Instances.Min == 0 || d.label(labelMin) != "" || d.label(labelZero) != "" {
		c.Instances.Min = min(t.Instances.Min, c.Instances.Max)
	}
	if d.label(labelIdle) != "" {
		c.Instances.Idle = t.Instances.Idle
	}
}

// deploymentOf returns the deployment's request. For a function deployed by other means,
// deploymentOf returns an equivalent request.
func deploymentOf(c *image.Config, name, ref string) (types.FunctionDeployment, error) {
	var d types.FunctionDeployment
	if raw := c.Labels[deploymentLabel]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &d); err != nil {
			return d, fmt.Errorf("label %s of %s: %w", deploymentLabel, name, err)
		}
		return d, nil
	}
	return types.FunctionDeployment{
		Service: name, Image: ref, Secrets: slices.Clone(c.Secrets),
		Limits: &types.FunctionResources{Memory: strconv.FormatInt(c.Resources.MemoryBytes, 10), CPU: fmt.Sprintf("%dm", c.Resources.CPUMillis)},
	}, nil
}
