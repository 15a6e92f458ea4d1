package access

import (
	"errors"
	"path/filepath"
	"time"
)

// Open reads the records in cfg.Dir, or creates them.
func Open(cfg Config) (_ *Access, err error) {
	cfg.setDefaults()
	a := &Access{cfg: cfg, begun: time.Now(), secrets: secretFiles(filepath.Join(cfg.Dir, "secrets"))}
	if err := makeDirs(cfg.Dir, string(a.secrets)); err != nil {
		return nil, err
	}
	s, err := readState(a.recordsPath())
	if err != nil {
		return nil, err
	}
	a.state.Store(s)
	for _, o := range cfg.OIDC {
		i, err := newIssuer(o, cfg)
		if err != nil {
			return nil, err
		}
		a.oidc = append(a.oidc, i)
	}
	if a.keys.own, err = openKeys(cfg.KeyFile); err != nil {
		return nil, err
	}
	if cfg.SharedKeyFile != "" {
		if a.keys.shared, err = readKeys(cfg.SharedKeyFile); err != nil {
			return nil, err
		}
	}
	if err := a.finishRotation(); err != nil {
		return nil, err
	}
	a.failures = NewAddresses(Rate{Each: failureEvery, Burst: failureBurst})
	if a.audit, err = openAudit(filepath.Join(cfg.Dir, "audit.ndjson"), &cfg); err != nil {
		return nil, err
	}
	return a, nil
}

// Close writes the times of tokens' last use.
func (a *Access) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.used || a.unsaved {
		err = a.writeLocked(a.state.Load())
	}
	return errors.Join(err, a.audit.Close())
}
