package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// bucketMarks is the key-value bucket that keeps times by name.
const bucketMarks = "FRE_MARKS"

// marks returns the bucket, and makes the bucket if missing.
func (t *streams) marks(ctx context.Context) (jetstream.KeyValue, error) {
	kv, err := t.js.KeyValue(ctx, bucketMarks)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = t.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucketMarks, Description: "FRE: until when schedules were seen to", Replicas: t.cfg.Replicas})
	}
	return kv, fault(err)
}

// Mark returns the time kept under a name, or the zero time.
func (s *Service) Mark(ctx context.Context, name string) (time.Time, error) {
	kv, err := s.streams.marks(ctx)
	if err != nil {
		return time.Time{}, err
	}
	e, err := kv.Get(ctx, markKey(name))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fault(err)
	}
	t, err := time.Parse(time.RFC3339Nano, string(e.Value()))
	if err != nil {
		return t, fmt.Errorf("mark %s: %w", name, err)
	}
	return t, nil
}

// SetMark keeps a time under a name, on disk.
func (s *Service) SetMark(ctx context.Context, name string, t time.Time) error {
	kv, err := s.streams.marks(ctx)
	if err != nil {
		return err
	}
	_, err = kv.Put(ctx, markKey(name), []byte(t.UTC().Format(time.RFC3339Nano)))
	return fault(err)
}

func markKey(name string) string { return strings.NewReplacer("@", "=", "/", ".").Replace(name) }
