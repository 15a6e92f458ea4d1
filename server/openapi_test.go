package server

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/fre-engine/fre/api"
)

type schema struct {
	Ref        string            `yaml:"$ref"`
	Type       string            `yaml:"type"`
	Format     string            `yaml:"format"`
	Items      *schema           `yaml:"items"`
	AllOf      []schema          `yaml:"allOf"`
	Values     *schema           `yaml:"additionalProperties"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
}

// The OpenAPI description has the routes and wire types of the server.
func TestOpenAPI(t *testing.T) {
	src, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]schema
		}
	}
	if err := yaml.Unmarshal(src, &doc); err != nil {
		t.Fatal(err)
	}

	var described, served []string
	for path, item := range doc.Paths {
		for key := range item {
			if key != "parameters" {
				described = append(described, strings.ToUpper(key)+" "+path)
			}
		}
	}
	routes, _ := wire(Config{})
	for _, rt := range routes {
		served = append(served, rt.method+" "+rt.path)
	}
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(served, described); diff != "" {
		t.Errorf("routes of the server and of openapi.yaml (-server +openapi):\n%s", diff)
	}

	all := map[string]reflect.Type{}
	for _, v := range []any{
		api.Version{},
		api.Check{},
		api.Doctor{},
		api.Syscall{},
		api.SyscallLine{},
		api.Holding{},
		api.HeldStack{},
		api.Leaks{},
		api.Status{},
		api.EventStatus{},
		api.FunctionLoad{},
		api.QueuedEvent{},
		api.QueuedEventDetails{},
		api.QueuedEventLine{},
		api.Trigger{},
		api.AuditEntry{},
		api.AuditLine{},
		api.Node{},
		api.BufferStatus{},
		api.SandboxStatus{},
		api.Image{},
		api.ImageChanges{},
		api.Change{},
		api.ChangeEntry{},
		api.ImageUsage{},
		api.TenantUsage{},
		api.ContainerUsage{},
		api.CacheUsage{},
		api.DiskUsage{},
		api.Part{},
		api.HistoryStep{},
		api.Revision{},
		api.Revisions{},
		api.HeaderRoute{},
		api.Weight{},
		api.SplitRequest{},
		api.RollbackRequest{},
		api.AliasRequest{},
		api.TagRequest{},
		api.RemovedImage{},
		api.PruneRequest{},
		api.GCRequest{},
		api.GCReport{},
		api.FsckRequest{},
		api.FsckLine{},
		api.FsckProblem{},
		api.FsckResult{},
		api.PrunedImage{},
		api.ImageDetails{},
		api.LeftOut{},
		api.LeftOutFiles{},
		api.LeftOutPart{},
		api.SlimRequest{},
		api.Slimmed{},
		api.FileTotals{},
		api.GoneFile{},
		api.Function{},
		api.FunctionDetails{},
		api.ParkedInterpreters{},
		api.DeployRequest{},
		api.Progress{},
		api.BuildLine{},
		api.TravelLine{},
		api.PullRequest{},
		api.PushRequest{},
		api.ResolveRequest{},
		api.Resolved{},
		api.SignRequest{},
		api.RegistryAuth{},
		api.Sandbox{},
		api.ContainerRequest{},
		api.Container{},
		api.RenameRequest{},
		api.ContainerPruneRequest{},
		api.ContainerPruneReport{},
		api.Process{},
		api.Size{},
		api.Stats{},
		api.Exit{},
		api.LogLine{},
		api.LogEntry{},
		api.RunRequest{},
		api.AgentRequest{},
		api.Agent{},
		api.AgentExec{},
		api.AgentOutput{},
		api.AgentExit{},
		api.AgentFile{},
		api.AgentFiles{},
		api.Snapshot{},
		api.TemplateInfo{},
		api.TraceStep{},
		api.Quotas{},
		api.Tenant{},
		api.TenantRequest{},
		api.Identity{},
		api.Token{},
		api.TokenRequest{},
		api.TokenRotation{},
		api.NewToken{},
		api.Secret{},
		api.Error{},
		api.ErrorBody{},
	} {
		typ := reflect.TypeOf(v)
		all[typ.Name()] = typ
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(doc.Components.Schemas))); diff != "" {
		t.Fatalf("wire types and schemas (-api +openapi):\n%s", diff)
	}
	for name, typ := range all {
		if diff := cmp.Diff(schemaOf(typ), plain(doc.Components.Schemas[name])); diff != "" {
			t.Errorf("%s (-api +openapi):\n%s", name, diff)
		}
	}
	for _, ref := range regexp.MustCompile(`#/components/schemas/(\w+)`).FindAllStringSubmatch(string(src), -1) {
		if _, ok := all[ref[1]]; !ok {
			t.Errorf("openapi.yaml refers to the schema %s, which is not there", ref[1])
		}
	}
}

// plain sorts unordered lists.
func plain(s schema) schema {
	slices.Sort(s.Required)
	for i := range s.AllOf {
		s.AllOf[i] = plain(s.AllOf[i])
	}
	return s
}

// schemaOf returns the schema of a struct by its JSON tags.
func schemaOf(typ reflect.Type) schema {
	s := schema{Type: "object", Properties: map[string]schema{}}
	var base *schema
	for field := range typ.Fields() {
		if field.Anonymous {
			base = &schema{Ref: "#/components/schemas/" + field.Type.Name()}
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		if options != "omitempty" && options != "omitzero" {
			s.Required = append(s.Required, name)
		}
		s.Properties[name] = valueSchema(field.Type)
	}
	slices.Sort(s.Required)
	if base != nil {
		return schema{AllOf: []schema{*base, s}}
	}
	return s
}

func valueSchema(typ reflect.Type) schema {
	switch {
	case typ == reflect.TypeFor[json.RawMessage]():
		return schema{}
	case typ == reflect.TypeFor[time.Time]():
		return schema{Type: "string", Format: "date-time"}
	case typ.Kind() == reflect.Pointer:
		return valueSchema(typ.Elem())
	case typ == reflect.TypeFor[[]byte]():
		return schema{Type: "string", Format: "byte"}
	case typ.Kind() == reflect.Slice || typ.Kind() == reflect.Array:
		items := valueSchema(typ.Elem())
		return schema{Type: "array", Items: &items}
	case typ.Kind() == reflect.Map:
		values := valueSchema(typ.Elem())
		return schema{Type: "object", Values: &values}
	case typ.Kind() == reflect.Struct:
		return schema{Ref: "#/components/schemas/" + typ.Name()}
	case typ.Kind() == reflect.Int64 || typ.Kind() == reflect.Uint64:
		return schema{Type: "integer", Format: "int64"}
	case typ.Kind() == reflect.Int:
		return schema{Type: "integer"}
	case typ.Kind() == reflect.Bool:
		return schema{Type: "boolean"}
	}
	return schema{Type: "string"}
}
