package build

// Open opens the cache of builds. The caller runs Collect.
func Open(cfg Config) (*Library, error) {
	l := &Library{cfg: cfg, store: cfg.Store, outward: cfg.Outward.Transport()}
	if cfg.Builder.Images == nil {
		cfg.Builder.Images = bases{l}
	}
	return l, l.openCache()
}

// Close ends idle connections. No build may be under way.
func (l *Library) Close() { l.outward.CloseIdleConnections() }
