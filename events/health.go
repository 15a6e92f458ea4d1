package events

import "github.com/nats-io/nats.go"

// health knows whether events can be stored.
type health struct {
	cfg      *Config
	nc       *nats.Conn
	embedded *embedded // nil: the server is external
	index    *index
	bodies   *bodies
}

// Status is the service in numbers.
type Status struct {
	Connected bool
	Pending   int   // events that have not ended
	BodyBytes int64 // large bodies
	FreeBytes int64 // on disk
}

// Status returns the connection's state and the counts.
func (h *health) Status() Status {
	return Status{Connected: h.nc.Status() == nats.CONNECTED, Pending: h.index.size(), BodyBytes: h.bodies.used.Load(), FreeBytes: freeBytes(h.cfg.Dir)}
}

// ready returns an error if the service cannot store events of a tenant now.
func (h *health) ready(tenant string) error {
	if h.nc.Status() != nats.CONNECTED {
		return refuse(ErrUnavailable, "the engine cannot reach NATS")
	}
	if h.embedded != nil && h.embedded.broken.Load() {
		return refuse(ErrStorage, "JetStream found the disk full, and restarts when the disk has space")
	}
	if freeBytes(h.cfg.Dir) < h.cfg.MinFreeBytes {
		return refuse(ErrStorage, "less than %d bytes are free", h.cfg.MinFreeBytes)
	}
	if h.embedded == nil {
		return nil
	}
	if own, all := h.embedded.stored(tenant); own > h.cfg.StoreBytes-all {
		return refuse(ErrStorage, "the tenant's events, results and dead letters take %d bytes, all tenants' %d of store_bytes, %d: a tenant may have as much as is left", own, all, h.cfg.StoreBytes)
	}
	return nil
}
