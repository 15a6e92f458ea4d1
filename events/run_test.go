package events

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// slow is a message whose word that it is worked on takes a while.
type slow struct {
	jetstream.Msg
	said atomic.Int32
}

func (m *slow) InProgress() error {
	m.said.Add(1)
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble
	return nil
}

// Nothing is said of an event after its end, though that came while something was being said.
func TestKeepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &slow{}
		stop := new(Service).keep(m, time.Minute)
		time.Sleep(2*time.Minute + 1500*time.Millisecond) //nolint:forbidigo // in the second one, of the bubble
		stop()
		time.Sleep(time.Hour) //nolint:forbidigo // likewise
		synctest.Wait()
		if n := m.said.Load(); n != 2 {
			t.Errorf("it was said %d times, want twice", n)
		}
	})
}
