package daemon

import (
	"log/slog"
	"testing"
	"time"
)

// TestNoCollections: a negative interval starts no timer, which would panic.
func TestNoCollections(t *testing.T) {
	Registry{Interval: -time.Hour}.collectEach(t.Context(), nil, slog.New(slog.DiscardHandler))
}
