package debian

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sync/errgroup"
)

// Unpack downloads pkgs (8 at once, into the cache) and writes the files that keep accepts; nil
// keeps all. It makes directories (mode 0755) only for accepted files. The tree is usr-merged:
// files of bin, sbin and lib* are written below usr/, and the links are made; keep sees the merged
// paths. After an error w holds half a tree.
//
// Set-id and sticky bits are dropped, hard links become files with the same content, owners are not
// passed on. Devices, fifos, absolute or climbing paths and paths through a symlink are
// [ErrUnsafe].
//
// If keep accepts files of usr/share/ca-certificates, Unpack writes the bundle of
// update-ca-certificates to etc/ssl/certs/ca-certificates.crt, and to usr/lib/ssl/cert.pem for an
// OpenSSL without /etc.
//
// report, when not nil, is called from this goroutine after each package with the sizes of the
// finished .debs and of all.
func (a *Archive) Unpack(ctx context.Context, pkgs []Package, w Writer, keep func(path string) bool, report func(name string, done, total int64)) error {
	if keep == nil {
		keep = func(string) bool { return true }
	}
	for _, p := range pkgs {
		if p.Size > a.limits.deb {
			return fmt.Errorf("package %s: %d bytes: more than %d", p.Name, p.Size, a.limits.deb)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(1 + downloads)
	ready := make([]chan *os.File, len(pkgs))
	ahead := make(chan struct{}, 4*downloads) // bounds the open files
	for i := range ready {
		ready[i] = make(chan *os.File, 1)
	}
	g.Go(func() error { return a.download(gctx, g, pkgs, ready, ahead) })
	t := &tree{w: w, keep: keep, limits: a.limits, log: a.log, kind: map[string]byte{}}
	err := t.all(gctx, pkgs, ready, ahead, report)
	if err != nil {
		cancel()
	}
	// A failed download is the cause of the cancellation.
	if derr := g.Wait(); derr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = derr
	}
	closeReady(ready)
	return err
}

// download fetches pkgs in goroutines of g and sends each file to its channel. A slot of ahead is
// taken before each download.
func (a *Archive) download(ctx context.Context, g *errgroup.Group, pkgs []Package, ready []chan *os.File, ahead chan<- struct{}) error {
	for i, p := range pkgs {
		select {
		case ahead <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		g.Go(func() error {
			f, err := a.fetch.verified(ctx, "deb", p.SHA256, p.Size, p.uri+"/"+p.Filename)
			if err != nil {
				return fmt.Errorf("package %s: %w", p.Name, err)
			}
			ready[i] <- f
			return nil
		})
	}
	return nil
}

// closeReady closes the files that nothing received.
func closeReady(ready []chan *os.File) {
	for _, c := range ready {
		select {
		case f := <-c:
			_ = f.Close()
		default:
		}
	}
}

// all writes the packages in order, each as soon as it is downloaded.
func (t *tree) all(ctx context.Context, pkgs []Package, ready []chan *os.File, ahead <-chan struct{}, report func(string, int64, int64)) error {
	var done, total int64
	for _, p := range pkgs {
		total += p.Size
	}
	for i, p := range pkgs {
		var f *os.File
		select {
		case f = <-ready[i]:
		case <-ctx.Done():
			return ctx.Err()
		}
		err := t.deb(ctx, p.Name, f)
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("package %s: %w", p.Name, err)
		}
		<-ahead
		done += p.Size
		if report != nil {
			report(p.Name, done, total)
		}
	}
	return t.finish()
}
