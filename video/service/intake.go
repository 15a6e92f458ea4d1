package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/video/asset"
	"github.com/fre-engine/fre/video/media"
)

// Order is a client's order for a video.
type Order struct {
	Name       string // chosen by the owner
	Codec      string // of media.Codecs; "": the service's default
	Protection asset.Protection
}

func (o Order) asset(id string) *asset.Asset {
	a := &asset.Asset{ID: id, Name: o.Name, Codec: o.Codec, Protection: o.Protection, Created: time.Now().UTC(), State: asset.Uploading}
	if o.Protection != asset.Clear {
		a.Secret = asset.NewSecret()
	}
	return a
}

// parseOrder parses an order. Errors are for the client.
func (s *Service) parseOrder(name, codec, protection string) (o Order, err error) {
	o.Name = fileName(name)
	if o.Codec, err = media.ParseCodec(codec); err == nil {
		o.Protection, err = asset.ParseProtection(protection)
	}
	if made := cmp.Or(o.Codec, s.cfg.Codec, media.H264); err == nil && o.Protection == asset.CBCS && made != media.H264 {
		err = fmt.Errorf("protection %s is for h264, not for %s: take aes-128, or h264", o.Protection, made)
	}
	if err != nil {
		return o, &api.Error{Status: http.StatusBadRequest, Code: api.CodeBadRequest, Message: err.Error()}
	}
	return o, nil
}

// fileName returns a client's file name in a form for display: the last element of a path, at
// most 200 characters on one line.
func fileName(s string) string {
	s = s[strings.LastIndexAny(s, `/\`)+1:]
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return -1
		}
		return c
	}, strings.ToValidUTF8(s, ""))
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200])
	}
	if s == "" {
		s = "video"
	}
	return s
}

// Add stores a video read from r and starts the work on a new asset.
func (s *Service) Add(ctx context.Context, order Order, r io.Reader) (*asset.Asset, error) {
	id := asset.NewID()
	if err := s.library.Create(order.asset(id)); err != nil {
		return nil, err
	}
	var a *asset.Asset
	err := func() error {
		f, err := os.Create(s.SourcePath(id))
		if err != nil {
			return err
		}
		err = s.copy(f, r, s.cfg.MostBytes+1)
		if errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = fmt.Errorf("%w: %d bytes at most", ErrTooLarge, s.cfg.MostBytes)
		}
		return errors.Join(err, f.Close())
	}()
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		a, err = s.Uploaded(id)
	}
	if err != nil {
		return nil, errors.Join(err, s.library.Remove(id))
	}
	return a, nil
}

// Expect makes an asset for an upload of size bytes to [Service.SourcePath]. The caller follows
// up with Uploaded or Remove.
func (s *Service) Expect(id string, order Order, size int64) error {
	a := order.asset(id)
	a.Size = size
	return s.library.Create(a)
}

// SourcePath returns the path of an asset's source.
func (s *Service) SourcePath(id string) string { return s.library.Path(id, sourceFile) }

// Uploaded starts the work on an asset with a complete source. The error is ErrEmpty for an empty
// source, and ErrState for an asset not in state Uploading.
func (s *Service) Uploaded(id string) (*asset.Asset, error) {
	f, err := os.Open(s.SourcePath(id))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = ErrEmpty
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, err
	}
	return s.begin(id, func(a *asset.Asset) { a.Size = info.Size() }, asset.Uploading)
}

// Retry starts the work on a failed asset again. In any other state the error is ErrState.
func (s *Service) Retry(id string) (*asset.Asset, error) {
	return s.begin(id, func(a *asset.Asset) { a.Error, a.Plan, a.Source = "", nil, nil }, asset.Failed)
}

func (s *Service) begin(id string, change func(*asset.Asset), from asset.State) (*asset.Asset, error) {
	a, err := s.library.Update(id, func(a *asset.Asset) error {
		if a.State != from {
			return fmt.Errorf("%w: asset %s is %s, not %s", ErrState, id, a.State, from)
		}
		change(a)
		a.State = asset.Working
		return nil
	})
	if err == nil {
		s.start(id)
	}
	return a, err
}
