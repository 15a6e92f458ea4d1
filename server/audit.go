package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/api"
)

// auditRoutes are the route of the audit log.
type auditRoutes struct {
	engine Engine
	access *access.Access // nil: none
}

func (s *auditRoutes) routes() []route {
	return []route{
		{"GET", "/v1/audit", s.auditLog},
	}
}

// auditLog answers GET /v1/audit?since=&tail=&tenant=&action=&follow=.
func (s *auditRoutes) auditLog(w http.ResponseWriter, r *http.Request) error {
	a, err := recordsOf(s.access)
	if err != nil {
		return err
	}
	o, err := auditOptions(r)
	if err != nil {
		return err
	}
	o.Done = s.engine.Closed()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil //nolint:nilerr // the client has gone
	}
	err = a.Audit(r.Context(), o, func(e access.Entry) error {
		return writeLine(w, api.AuditLine{Entry: auditEntryOf(e)})
	})
	if err != nil && r.Context().Err() == nil {
		_ = writeLine(w, api.AuditLine{Error: errorOf(err)}) // best effort: the stream is broken already
	}
	return nil
}

// auditOptions parses a request's query. A tenant's token sees only entries of the tenant's
// callers.
func auditOptions(r *http.Request) (access.AuditOptions, error) {
	q := queryOf(r)
	o := access.AuditOptions{
		Follow: q.flag("follow"), Since: q.time("since"),
		Tail: q.number("tail", 1000, 0, access.MaxAuditTail, fmt.Sprintf("is no number of entries from 0 to %d", access.MaxAuditTail)),
	}
	if q.err != nil {
		return o, q.err
	}
	id, tenant, actions := identityOf(r), q.Get("tenant"), q.Values["action"]
	if tenant != "" && !id.Of(tenant) {
		return o, notOfTenant("tenant " + tenant)
	}
	o.Keep = func(e access.Entry) bool {
		return id.Of(e.Tenant) && (tenant == "" || e.Tenant == tenant) &&
			(len(actions) == 0 || slices.ContainsFunc(actions, func(part string) bool { return strings.Contains(e.Action, part) }))
	}
	return o, nil
}

func auditEntryOf(e access.Entry) *api.AuditEntry {
	out := &api.AuditEntry{
		Time: e.Time, Who: e.Who, Tenant: e.Tenant, Action: e.Action, On: e.On, Result: string(e.Result), Status: e.Status, Reason: e.Reason, Missed: e.Missed,
	}
	if e.Client.IsValid() {
		out.Client = e.Client.String()
	}
	return out
}
