package debian

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/mikelolasagasti/xz"
	"golang.org/x/sync/errgroup"
)

// load returns the index. The first successful call builds it.
func (a *Archive) load(ctx context.Context) (*index, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.index != nil {
		return a.index, nil
	}
	lists := make([][]*Package, len(a.sources))
	used := make([]bool, len(a.sources))
	g, gctx := errgroup.WithContext(ctx)
	for i, s := range a.sources {
		g.Go(func() error {
			var err error
			lists[i], used[i], err = a.loadSource(gctx, s)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if !slices.Contains(used, true) {
		return nil, fmt.Errorf("no apt source of origin %q for %s", a.origin, a.codename)
	}
	x := newIndex(lists)
	for _, p := range x.packages {
		if err := x.addProvides(p); err != nil {
			// Only this package is affected: a dependency on it is reported as missing.
			a.log.WarnContext(ctx, "unreadable Provides of a package", "package", p.Name, "error", err)
		}
	}
	a.index = x
	return x, nil
}

// loadSource returns the packages of a source. used is false for a source that is not the
// distribution's own.
func (a *Archive) loadSource(ctx context.Context, s Source) (list []*Package, used bool, err error) {
	r, err := a.loadRelease(ctx, s)
	if err != nil {
		return nil, false, err
	}
	if a.origin != "" && !strings.EqualFold(r.origin, a.origin) {
		a.log.DebugContext(ctx, "apt source is not the distribution's own", "uri", redact(s.URI), "origin", r.origin)
		return nil, false, nil
	}
	for _, c := range s.Components {
		l, err := a.loadPackages(ctx, s, r, c)
		if err != nil {
			return nil, false, fmt.Errorf("%s %s %s: %w", redact(s.URI), s.Suite, c, err)
		}
		list = append(list, l...)
	}
	return list, true, nil
}

// loadPackages fetches and parses one component's Packages file.
func (a *Archive) loadPackages(ctx context.Context, s Source, r *inRelease, component string) ([]*Package, error) {
	dir := component + "/binary-" + a.arch + "/"
	plain, ok := r.files[dir+"Packages"]
	if !ok {
		return nil, fmt.Errorf("the release file lists no %sPackages", dir)
	}
	// gzip first: a third larger than xz, and decoded four times as fast.
	for _, ext := range []string{".gz", ".xz"} {
		f, ok := r.files[dir+"Packages"+ext]
		if !ok {
			continue
		}
		base := s.URI + "/dists/" + s.Suite + "/" + dir
		uris := []string{base + "Packages" + ext}
		if r.byHash {
			uris = append([]string{base + "by-hash/SHA256/" + f.sha256}, uris...)
		}
		if plain.size > a.limits.index {
			return nil, fmt.Errorf("index of %d bytes: more than %d", plain.size, a.limits.index)
		}
		file, err := a.fetch.verified(ctx, "index", f.sha256, f.size, uris...)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		var in io.Reader
		if ext == ".gz" {
			in, err = gzip.NewReader(file)
		} else {
			in, err = xz.NewReader(file, 0)
		}
		if err != nil {
			return nil, fmt.Errorf("decompress: %w", err)
		}
		return parsePackages(&boundReader{r: in, left: plain.size}, s.URI, a.arch)
	}
	return nil, fmt.Errorf("the release file lists neither %sPackages.gz nor .xz", dir)
}

// loadRelease fetches, or revalidates, and verifies a suite's InRelease. If the archive cannot be
// reached, a valid cached file is enough.
func (a *Archive) loadRelease(ctx context.Context, s Source) (*inRelease, error) {
	keys, err := s.keyring()
	if err != nil {
		return nil, err
	}
	uri := s.URI + "/dists/" + s.Suite + "/InRelease"
	sum := sha256.Sum256([]byte(uri))
	path := filepath.Join(a.fetch.cache, "release", hex.EncodeToString(sum[:]))

	cached, since := a.cachedRelease(path, s, keys)
	data, modified, err := a.fetchRelease(ctx, uri, since)
	switch {
	case errors.Is(err, errNotModified):
		return cached, a.expired(s, cached)
	case err != nil:
		if cached == nil || !offline(ctx, err) || a.expired(s, cached) != nil {
			return nil, fetchError(uri, err, a.hint())
		}
		a.log.WarnContext(ctx, "archive not reachable, using the cached release file", "uri", redact(uri), "error", err)
		return cached, nil
	case len(data) > maxRelease:
		return nil, fmt.Errorf("%s: larger than %d bytes", redact(uri), maxRelease)
	}
	r, err := a.accept(s, data, keys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w%s", redact(uri), err, a.hint())
	}
	if err := keepRelease(path, data, modified); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	return r, nil
}

// accept refuses a release without a valid signature, of another suite, or past its end.
func (a *Archive) accept(s Source, data []byte, keys openpgp.EntityList) (*inRelease, error) {
	r, err := s.verify(data, keys, a.now())
	if err != nil {
		return nil, err
	}
	return r, a.expired(s, r)
}

// fetchRelease returns up to maxRelease+1 bytes and the time of the last modification.
func (a *Archive) fetchRelease(ctx context.Context, uri string, since time.Time) (data []byte, modified time.Time, err error) {
	err = a.fetch.retry(ctx, func() error {
		body, t, err := a.fetch.open(ctx, uri, since)
		if err != nil {
			return err
		}
		defer body.Close()
		modified = t
		data, err = io.ReadAll(io.LimitReader(body, maxRelease+1))
		return err
	})
	return data, modified, err
}

// offline reports whether the archive, and not the request, causes the error.
func offline(ctx context.Context, err error) bool {
	var status *statusError
	return ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && (!errors.As(err, &status) || status.code >= 500)
}

// keepRelease writes the cached file, with the archive's time for the next revalidation.
func keepRelease(path string, data []byte, modified time.Time) error {
	err := writeAside(path, func(w *os.File) error {
		_, err := w.Write(data)
		return err
	})
	if err == nil && !modified.IsZero() {
		err = os.Chtimes(path, modified, modified)
	}
	return err
}

// cachedRelease returns nil unless a cached file verifies.
func (a *Archive) cachedRelease(path string, s Source, keys openpgp.EntityList) (*inRelease, time.Time) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, time.Time{}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, time.Time{}
	}
	r, err := s.verify(data, keys, a.now())
	if err != nil {
		return nil, time.Time{}
	}
	return r, st.ModTime()
}

func (a *Archive) expired(s Source, r *inRelease) error {
	if r.validUntil.IsZero() || a.now().Before(r.validUntil) {
		return nil
	}
	if s.AllowExpired {
		a.log.Warn("release file has expired; accepted as apt is configured to", "suite", s.Suite, "valid_until", r.validUntil)
		return nil
	}
	return fmt.Errorf("%w: %s was valid until %s: check the host's clock and the mirror", ErrExpired, s.Suite, r.validUntil.Format(time.RFC3339))
}
