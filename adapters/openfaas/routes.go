package openfaas

import (
	"net/http"
	"net/netip"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/server/intake"
)

// New returns the handler of /system/ and /build.
func New(cfg Config) http.Handler {
	if cfg.MaxContextBytes == 0 {
		cfg.MaxContextBytes = 256 << 20
	}
	if cfg.ReceiveTime == 0 {
		cfg.ReceiveTime = receiveTime
	}
	h := &handler{Config: cfg, receiving: intake.Slots[netip.Prefix]{All: maxReceiving, Of: maxReceivingOf}}
	mux := http.NewServeMux()
	for _, r := range []struct {
		pattern string
		scope   access.Scope
		handle  func(w http.ResponseWriter, r *request) error
	}{
		{"GET /system/info", access.Read, h.info},
		{"GET /system/functions", access.Read, h.list},
		{"POST /system/functions", access.Deploy, h.deploy},
		{"PUT /system/functions", access.Deploy, h.deploy},
		{"DELETE /system/functions", access.Deploy, h.remove},
		{"GET /system/function/{name}", access.Read, h.describe},
		{"POST /system/scale-function/{name}", access.Deploy, h.scale},
		{"GET /system/secrets", access.Read, h.secrets},
		{"POST /system/secrets", access.Deploy, h.putSecret},
		{"PUT /system/secrets", access.Deploy, h.putSecret},
		{"DELETE /system/secrets", access.Deploy, h.removeSecret},
		{"GET /system/logs", access.Read, h.logs},
		{"GET /system/namespaces", access.Read, h.namespaces},
		{"GET /system/namespace/{name}", access.Read, h.namespace},
		{"POST /system/namespace/{$}", access.Admin, h.createNamespace},
		{"DELETE /system/namespace/{name}", access.Admin, h.removeNamespace},
	} {
		mux.HandleFunc(r.pattern, h.guarded(r.pattern, r.scope, r.handle))
	}
	mux.HandleFunc("/system/", h.guarded("/system/", access.Read, func(_ http.ResponseWriter, r *request) error {
		return &api.Error{Code: failure.Unsupported, Message: r.Method + " " + r.URL.Path + " is not supported", Next: "see docs/openfaas.md for supported requests"}
	}))
	mux.HandleFunc("/build", h.build)
	return mux
}
