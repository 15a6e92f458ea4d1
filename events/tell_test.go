package events

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// told returns entries as a node receives them.
func told() []Entry {
	at := time.UnixMicro(1_700_000_000_123_456).UTC()
	return []Entry{
		{ID: eventID("f", "1"), Function: "f", Tenant: "default", Priority: Normal, State: StateQueued, Source: "http", Accepted: at, Changed: at, Size: 300, seq: 7},
		{ID: eventID("f", "2"), Function: "f.acme", Tenant: "acme", Priority: High, State: StateDead, Accepted: at, Changed: at.Add(time.Hour), Attempts: 3, Status: 500, Error: "the function answered 500", seq: 1 << 40},
		{ID: eventID("g", "1"), Function: "g", Tenant: "default", Priority: Low, State: StateWaiting, Source: "cron/" + strings.Repeat("x", 300)},
	}
}

// FuzzChanges: A node refuses the bytes of another node, or reads changes that stay the same when
// written again.
func FuzzChanges(f *testing.F) {
	var all []byte
	for _, e := range told() {
		one := appendChange(nil, &e)
		f.Add(one)
		f.Add(one[:len(one)-1])
		all = append(all, one...)
	}
	f.Add(all)
	f.Add(bytes.Repeat([]byte{0xff}, 40))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, rest, err := readChange(b, &Entry{})
		if err != nil {
			return
		}
		if !validID(e.ID) || e.Function == "" || e.Tenant == "" || weights[e.Priority] == 0 || e.Attempts < 0 || e.Size < 0 || len(rest) > len(b)-18 {
			t.Fatalf("%+v, and %d of %d bytes are left", e, len(rest), len(b))
		}
		again, rest, err := readChange(appendChange(nil, &e), &e)
		if err != nil || len(rest) != 0 {
			t.Fatalf("written again: %v, %d bytes are left", err, len(rest))
		}
		if diff := cmp.Diff(e, again, cmp.AllowUnexported(Entry{})); diff != "" {
			t.Errorf("written again (-first +again):\n%s", diff)
		}
	})
}

// A node tells its changes to the other nodes: the first change at once, the next changes together
// in one message.
func TestTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent [][]byte
		tell := teller{send: func(b []byte) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, bytes.Clone(b))
		}}
		messages := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(sent)
		}
		heard := func() (got []string) {
			mu.Lock()
			defer mu.Unlock()
			for _, b := range sent {
				var ids []string
				if b[0] != wireVersion {
					t.Fatalf("version %d", b[0])
				}
				for b = b[1:]; len(b) > 0; {
					e, rest, err := readChange(b, &Entry{})
					if err != nil {
						t.Fatal(err)
					}
					ids, b = append(ids, string(e.State)), rest
				}
				got = append(got, strings.Join(ids, " "))
			}
			sent = nil
			return got
		}
		all := told()
		for i, e := range all {
			if i == 1 && messages() != 1 {
				t.Error("the first was not sent at once")
			}
			tell.tell(e)
		}
		<-time.After(tellEvery)
		synctest.Wait()
		if diff := cmp.Diff([]string{"queued", "dead waiting"}, heard()); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		tell.tell(all[0]) // the pause after the second message lasts
		if messages() != 0 {
			t.Error("one that follows was sent at once")
		}
		tell.flush()
		if diff := cmp.Diff([]string{"queued"}, heard()); diff != "" {
			t.Errorf("flushed (-want +got):\n%s", diff)
		}
		<-time.After(2 * tellEvery)
		synctest.Wait()
		tell.tell(all[1])
		if diff := cmp.Diff([]string{"dead"}, heard()); diff != "" {
			t.Errorf("after a pause (-want +got):\n%s", diff)
		}
		for range 1000 {
			tell.tell(all[2])
		}
		if n := messages(); n < 2 || n > 20 {
			t.Errorf("a thousand at once are %d messages, want some", n)
		}
		<-time.After(2 * tellEvery)
		synctest.Wait()
	})
}

// A receiver reads exactly the changes that the sender wrote.
func TestChange(t *testing.T) {
	all := told()
	for i, want := range all {
		got, rest, err := readChange(append(appendChange(nil, &want), "next"...), &all[(i+1)%len(all)])
		if err != nil || string(rest) != "next" {
			t.Errorf("%d: %v, %q is left", i, err, rest)
		}
		if want.Accepted.IsZero() {
			got.Accepted, got.Changed = got.Accepted.UTC(), got.Changed.UTC()
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Entry{})); diff != "" {
			t.Errorf("%d (-want +got):\n%s", i, diff)
		}
	}
	for i, b := range [][]byte{nil, {wireVersion}, bytes.Repeat([]byte{9}, 30), bytes.Repeat([]byte{0}, 30), append(make([]byte, 18), bytes.Repeat([]byte{0xff}, 50)...)} {
		if e, _, err := readChange(b, &all[0]); err == nil {
			t.Errorf("%d: %+v is a change", i, e)
		}
	}
}

// BenchmarkHear: A node reads a message with 16 changes of another node.
func BenchmarkHear(b *testing.B) {
	var s Service
	s.index = newIndex()
	s.index.share = func(Entry) {}
	e := told()[0]
	e.State = StateDone
	message := []byte{wireVersion}
	for i := range 16 {
		e.ID = eventID("f", fmt.Sprint(i))
		message = appendChange(message, &e)
	}
	b.ReportAllocs()
	for b.Loop() {
		s.hear(message)
	}
}
