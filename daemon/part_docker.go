//go:build !nodocker

package daemon

import (
	"context"
	"os"

	"github.com/fre-engine/fre/adapters/docker"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/server"
)

// hasDocker says that --docker-socket has a default.
const hasDocker = true

// dockerPart serves Docker's clients.
type dockerPart struct{ cleanup }

func newDocker() part { return &dockerPart{} }

// Open listens on the socket.
func (p *dockerPart) Open(_ context.Context, d *Daemon) error {
	path := d.cfg.DockerSocket
	l, err := server.Listen(path, d.cfg.Group)
	if err != nil {
		return failure.Hint(err, "give another path with --docker-socket, or none")
	}
	p.add(func() error { return ignoreMissing(os.Remove(path)) })
	p.addListener(l)
	d.answer(l, newHTTPServer(docker.New(docker.Config{Engine: d.engine, Log: d.log, Version: d.cfg.Version, Access: d.records}), d.log))
	return nil
}
