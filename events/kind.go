package events

import "strings"

// kind is the content of a stream. Each tenant has a stream of each kind, made on first need, so
// that one tenant's data never takes another tenant's space.
type kind struct {
	stream string // name, before the tenant
	word   string // subjects are fre.WORD.TENANT.…

	// Earlier versions have one stream for all tenants, with fre.SHAREDWORD.TENANT.…. Its messages
	// are still read, and its orders sent, as long as they are kept.
	shared, sharedWord string
}

var (
	kindQueue   = kind{stream: "FRE_EVENTS_", word: "events"}
	kindResults = kind{stream: "FRE_RESULTS_", word: "result", shared: "FRE_RESULTS", sharedWord: "results"}
	kindDead    = kind{stream: "FRE_DEAD_", word: "letter", shared: "FRE_DEAD", sharedWord: "dead"}
	kindOrders  = kind{stream: "FRE_CALLBACKS_", word: "order", shared: "FRE_CALLBACKS", sharedWord: "callbacks"}

	kinds = []kind{kindQueue, kindResults, kindDead, kindOrders}
)

// of returns the name of a tenant's stream.
func (k kind) of(tenant string) string { return k.stream + tenant }

// subject returns the subject of one event.
func (k kind) subject(tenant, function, id string) string {
	return endSubject(k.word, tenant, function, id)
}

// kindOf returns the kind and the tenant of a stream by its name; tenant "" means all tenants.
func kindOf(stream string) (k kind, tenant string, ok bool) {
	for _, k := range kinds {
		if tenant, ok := strings.CutPrefix(stream, k.stream); ok {
			return k, tenant, true
		}
		if stream == k.shared {
			return k, "", true
		}
	}
	return kind{}, "", false
}
