package server

import (
	"net/http"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/template"
)

// triggerRoutes are the route of functions' triggers.
type triggerRoutes struct {
	engine Engine
}

func (s *triggerRoutes) routes() []route {
	return []route{
		{"GET", "/v1/triggers", s.triggers},
	}
}

// triggers answers GET /v1/triggers.
func (s *triggerRoutes) triggers(w http.ResponseWriter, r *http.Request) error {
	all := []api.Trigger{}
	now := time.Now()
	for _, f := range only(s.engine.Functions(), identityOf(r), functionTenant) {
		for i := range f.Config.Triggers {
			all = append(all, triggerOf(f, &f.Config.Triggers[i], now))
		}
	}
	return reply(w, http.StatusOK, all)
}

func triggerOf(f *engine.Function, t *template.Trigger, now time.Time) api.Trigger {
	out := api.Trigger{Function: f.Name, Tenant: f.Config.Tenant, Name: t.Name, Kind: t.Kind()}
	hook := "/hooks/" + f.Name + "/" + t.Name
	switch {
	case t.Cron != nil:
		out.Detail = t.Cron.Schedule + " " + t.Cron.Zone
		if next, err := t.Cron.Next(now); err == nil {
			next = next.UTC()
			out.Next = &next
		}
	case t.Webhook != nil:
		out.Detail = hook + " " + t.Webhook.Signature
	case t.NATS != nil:
		out.Detail = t.NATS.Subject
		if t.NATS.Stream != "" {
			out.Detail += " of " + t.NATS.Stream
		}
	case t.Files != nil:
		out.Detail = "/work/" + t.Files.Path
	default:
		out.Detail = hook
	}
	return out
}
