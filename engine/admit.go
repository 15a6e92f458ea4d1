package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/fre-engine/fre/admission"
	"github.com/fre-engine/fre/image"
)

// cheapBody is the largest request body that counts as needing no memory.
const cheapBody = 64 << 10

func (h *host) openAdmission() error {
	cfg := h.cfg.Admission
	if err := cfg.Check(); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	cfg.Free = h.buffers.Free
	cfg.Changed = func(from, to admission.State, because admission.Reason) {
		log := h.log.Info
		if to == admission.Degraded {
			log = h.log.Warn
		}
		log("admission", "from", from.String(), "to", to.String(), "reason", string(because))
	}
	h.admission = admission.New(cfg)
	return nil
}

// watchAdmission brings the state back to normal, also while no events come.
func (h *host) watchAdmission() {
	for {
		select {
		case <-h.admission.Unsettled():
		case <-h.life.Closed():
			return
		}
		tick := time.NewTicker(h.admission.Every())
		for h.admission.Look() != admission.Normal {
			select {
			case <-tick.C:
			case <-h.life.Closed():
				tick.Stop()
				return
			}
		}
		tick.Stop()
	}
}

// admit refuses an event that needs memory for bodies while memory is short: an event of a
// native function, because the engine holds the answer, and an event with a large body or a body
// of unknown size.
func (p *program) admit(r *Request) error {
	large := r.Body != nil && (r.Length < 0 || r.Length > cheapBody)
	if p.config.Protocol != image.ProtocolStdio && !large {
		return nil
	}
	err := p.host.admission.Admit()
	var refused *admission.RefusedError
	if errors.As(err, &refused) {
		p.host.metrics.refuse(refused.Reason)
	}
	return err
}
