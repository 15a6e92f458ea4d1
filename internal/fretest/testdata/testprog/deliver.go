package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/function/channel"
)

// delivery is a line that deliver writes about an event.
type delivery struct {
	ID      string            `json:"id"`
	Attempt string            `json:"attempt"`
	Source  string            `json:"source"`
	Subject string            `json:"subject,omitempty"` // of a NATS message
	Body    string            `json:"body"`
	Event   map[string]string `json:"event,omitempty"` // a CloudEvent's attributes, in lower case as in the header
	File    string            `json:"file,omitempty"`  // content of the file named by the event
}

// deliver answers events and leaves traces for the test outside. For each event deliver appends a
// line of JSON to /work/begun, waits until /work/open exists, and appends a line to /work/done.
// Before the second line deliver reads and removes the file named by the event.
func deliver() error {
	conn, err := channel.Inherited()
	if err != nil {
		return err
	}
	ready := channel.Ready{Protocol: 1, Runtime: "go", Concurrency: 1}
	return channel.Serve(context.Background(), conn, ready, func(ctx context.Context, ev *channel.Event) (*channel.Answer, error) {
		body, err := io.ReadAll(ev.Body)
		if err != nil {
			return nil, err
		}
		d := delivery{Body: string(body)}
		for _, h := range ev.Headers {
			switch name := strings.ToLower(h[0]); name {
			case "x-call-id":
				d.ID = h[1]
			case "x-fre-event-attempt":
				d.Attempt = h[1]
			case "x-fre-event-source":
				d.Source = h[1]
			case "x-fre-nats-subject":
				d.Subject = h[1]
			default:
				if name == "content-type" || strings.HasPrefix(name, "ce-") {
					if d.Event == nil {
						d.Event = map[string]string{}
					}
					d.Event[name] = h[1]
				}
			}
		}
		if err := d.write("/work/begun"); err != nil {
			return nil, err
		}
		if err := untilThere(ctx, "/work/open"); err != nil {
			return nil, err
		}
		var about struct {
			Path string `json:"path"`
		}
		if json.Unmarshal(body, &about) == nil && about.Path != "" {
			text, err := os.ReadFile(about.Path)
			if err == nil {
				err = os.Remove(about.Path)
			}
			if err != nil {
				return nil, err
			}
			d.File = string(text)
		}
		return &channel.Answer{Status: 200, Body: strings.NewReader("delivered " + d.Body)}, d.write("/work/done")
	})
}

func (d *delivery) write(path string) error {
	line, err := json.Marshal(d)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// untilThere waits until a file exists.
func untilThere(ctx context.Context, path string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
