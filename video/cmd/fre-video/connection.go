package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/fre-engine/fre/api"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
	"github.com/fre-engine/fre/video/client"
)

// defaultListen is the address of the service without --listen and FRE_VIDEO_URL.
const defaultListen = "127.0.0.1:8090"

// errUnreachable reports that no service answers at FRE_VIDEO_URL.
var errUnreachable = errors.New("the service is not reachable")

// failedError reports an asset in state failed.
type failedError struct{ id, why string }

func (e *failedError) Error() string { return "asset " + e.id + " has failed: " + e.why }

// connect returns a client of the service at FRE_VIDEO_URL.
func connect() (*client.Client, error) {
	at := os.Getenv("FRE_VIDEO_URL")
	if at == "" {
		at = "http://" + defaultListen
	}
	c, err := client.New(at)
	if err != nil {
		return nil, command.Usage(failure.Hint(fmt.Errorf("FRE_VIDEO_URL: %w", err), "export FRE_VIDEO_URL=http://HOST:PORT of fre-video serve"))
	}
	return c, nil
}

// explain adds the next step to an error of an unreachable service or of another server.
func explain(ctx context.Context, err error) error {
	var wire *api.Error
	var failed *url.Error
	switch {
	case ctx.Err() != nil: // keep only a hint about the interruption
		if next := failure.Next(err); next != "" {
			return failure.Hint(context.Cause(ctx), next)
		}
		return context.Cause(ctx)
	case errors.As(err, &failed):
		return failure.Hint(fmt.Errorf("%w: %w", errUnreachable, failed.Err), "is fre-video serve running at the address in FRE_VIDEO_URL? the request was "+failed.URL)
	case errors.As(err, &wire) && wire.Code == api.CodeInsufficientDisk:
		return failure.Hint(err, "the service's disk is full: run the same command again when the disk has room; the command continues")
	case errors.Is(err, client.ErrNoService):
		return failure.Hint(err, "does FRE_VIDEO_URL name the address of fre-video serve, without a path?")
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
