package events

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// slow is a message whose progress report takes time.
type slow struct {
	jetstream.Msg
	said atomic.Int32
}

func (m *slow) InProgress() error {
	m.said.Add(1)
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble
	return nil
}

// No progress report follows the end of an event, even if the end comes during a report.
func TestKeepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &slow{}
		stop := keepDelivered(m, time.Minute)
		time.Sleep(2*time.Minute + 1500*time.Millisecond) //nolint:forbidigo // in the second one, of the bubble
		stop()
		time.Sleep(time.Hour) //nolint:forbidigo // likewise
		synctest.Wait()
		if n := m.said.Load(); n != 2 {
			t.Errorf("it was said %d times, want twice", n)
		}
	})
}

// TestRetryAfter: A function's Retry-After postpones the next attempt of its event.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "0": 0, "7": 7 * time.Second, " 120 ": 2 * time.Minute, "-1": 0, "1.5": 0, "soon": 0, "+5": 0,
		"7200": longestRetryAfter, "99999999999999999999": longestRetryAfter,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:00 GMT": 0, "Sat, 03 Jan 2026 03:04:05 GMT": longestRetryAfter,
	} {
		if got := retryAfter([][2]string{{"Content-Type", "text/plain"}, {"retry-after", value}}, now); got != want {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}
