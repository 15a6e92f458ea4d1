// Package openfaas serves OpenFaaS's clients, mainly faas-cli, on the gateway's listener:
// functions, scaling, secrets, logs, namespaces and remote builds (docs/openfaas.md). The
// gateway itself handles calls of functions, because FRE and OpenFaaS share the paths /function/
// and /async-function/.
//
//	/system/…  requires a token, as a bearer token or as the password of basic authentication
//	/build     accepts a build context with an HMAC by a secret of the tenant
//
// A namespace is a tenant; openfaas-fn is the default tenant. A deployment is an ordinary
// revision, of an image made from the named image: same files, other configuration. A label of
// the new image stores the deployment's request, to answer queries.
//
// The package uses no part of OpenFaaS except the types of the provider's SDK.
package openfaas

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	"github.com/openfaas/faas-provider/types"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/gateway"
	"github.com/fre-engine/fre/internal/wording"
	"github.com/fre-engine/fre/server"
	"github.com/fre-engine/fre/server/intake"
	"github.com/fre-engine/fre/template"
)

// Config configures the handler. Events and Builders may be nil. MaxContextBytes and ReceiveTime
// have defaults. All other fields are required.
type Config struct {
	Engine   *engine.Engine
	Access   *access.Access
	Log      *slog.Logger
	Version  api.Version
	Scratch  func() (string, error) // creates a directory on the store's file system
	Events   *events.Service        // asynchronous events, removed with their tenant; nil: none
	Builders []Builder              // accepted builders; none: no remote builds

	MaxContextBytes int64         // maximum size of a build context, packed and unpacked; default 256 MiB
	ReceiveTime     time.Duration // time limit for receiving a build context; default 2 minutes
}

// Builder authorizes holders of Secret to build for a tenant.
type Builder struct {
	Tenant string
	Secret []byte
}

// maxRequest is the maximum size of a request's JSON; a secret is at most 64 KiB, base64 or
// escaped.
const maxRequest = 1 << 20

// maxContextEntries is the maximum number of files and directories in a build context.
const maxContextEntries = 50_000

// Limits of receiving build contexts, before the signature identifies the tenant: the number in
// total and per address, and the time of each. Afterwards the tenant's quota limits builds.
const (
	maxReceiving   = 16
	maxReceivingOf = 4
	receiveTime    = 2 * time.Minute
)

type handler struct {
	Config
	receiving intake.Slots[netip.Prefix] // uploads of build contexts
}

// request is an authenticated request.
type request struct {
	*http.Request
	id access.Identity
	on string // object of the action, for the audit log
}

// guarded wraps a handler with authentication, a check of the scope, and the audit log.
func (h *handler) guarded(name string, scope access.Scope, handle func(http.ResponseWriter, *request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, hr *http.Request) {
		client := access.ClientOf(hr)
		id, err := h.Access.Authenticate(hr.Context(), hr.Header.Get("Authorization"), client)
		if err != nil {
			h.fail(w, hr, err)
			return
		}
		r := &request{Request: hr, id: id}
		entry := access.Entry{Who: id.Who, Tenant: id.Tenant, Client: client, Action: name, Result: access.Done}
		if err = id.Need(scope); err == nil {
			if !id.All() {
				r.Request = hr.WithContext(h.Engine.ForTenant(hr.Context()))
			}
			err = handle(w, r)
		}
		if err != nil {
			entry.Result, entry.Status, entry.Reason = access.Failed, h.fail(w, hr, err), err.Error()
			if entry.Status == http.StatusForbidden {
				entry.Result = access.Refused
			}
		}
		if entry.On = r.on; hr.Method != http.MethodGet || entry.Result == access.Refused {
			h.Access.Record(entry)
		}
	}
}

// fail sends an error as OpenFaaS's clients print errors: a line of text with the next step.
// fail returns the status.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) (status int) {
	e := server.ErrorOf(err)
	if e.Status == http.StatusInternalServerError {
		h.Log.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	server.Challenge(w, err)
	if e.Status == http.StatusUnauthorized { // the scheme used by faas-cli login
		w.Header().Set("WWW-Authenticate", `Basic realm="fre"`)
	}
	text := e.Message
	if e.Next != "" {
		text += "; " + e.Next
	}
	http.Error(w, text, e.Status)
	return e.Status
}

// tenant returns the tenant of a namespace. "" means the token's tenant or the default tenant.
// Other tenants' namespaces are not found.
func (r *request) tenant(namespace string) (string, error) {
	switch {
	case namespace == gateway.OpenFaaSNamespace, namespace == "" && r.id.All():
		namespace = template.DefaultTenant
	case namespace == "":
		namespace = r.id.Tenant
	}
	if !template.ValidName(namespace) {
		return "", badRequest("%q is not a namespace: a tenant's name is lower-case letters, digits and dashes", namespace)
	}
	if !r.id.Of(namespace) {
		return "", notFound("no namespace %q for the token", namespace)
	}
	return namespace, nil
}

// namespaceOf returns a tenant's namespace, as shown to clients.
func namespaceOf(tenant string) string {
	if tenant == template.DefaultTenant {
		return gateway.OpenFaaSNamespace
	}
	return tenant
}

// function returns a function of a namespace.
func (h *handler) function(r *request, name, namespace string) (*engine.Function, error) {
	tenant, err := r.tenant(namespace)
	if err != nil {
		return nil, err
	}
	r.on = name
	if !template.ValidName(name) {
		return nil, notFound("no function %q", name)
	}
	return h.Engine.Function(template.QualifiedName(name, tenant))
}

// decode parses a request's JSON and rejects unknown fields, so no setting is silently ignored.
func decode(w http.ResponseWriter, r *request, to any) error {
	body := http.MaxBytesReader(w, r.Body, maxRequest)
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("data after the JSON value")
	}
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	return badRequest("the request does not fit OpenFaaS's API: %s", wording.JSON(err))
}

func reply(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // an error means that the connection ends
	return nil
}

func badRequest(format string, args ...any) error {
	return &api.Error{Code: api.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf(format, args...)}
}

// info answers GET /system/info like an OpenFaaS gateway, which describes its provider.
func (h *handler) info(w http.ResponseWriter, _ *request) error {
	v := &types.VersionInfo{Release: h.Version.Version, SHA: cmp.Or(h.Version.Commit, h.Version.Version)}
	return reply(w, struct {
		Provider types.ProviderInfo `json:"provider"`
		Version  *types.VersionInfo `json:"version"`
		Arch     string             `json:"arch"`
	}{types.ProviderInfo{Name: "fre", Version: v, Orchestration: "fre"}, v, runtime.GOARCH})
}
