package engine

import (
	"context"
	"errors"
	"os"

	"github.com/fre-engine/fre/channel"
	"github.com/fre-engine/fre/engine/live"
	"github.com/fre-engine/fre/sandbox"
)

// boot starts the sandbox and waits until the bootstrap has loaded the handler. On failure
// boot cleans up.
func (in *instance) boot(ctx context.Context) error {
	f := in.f
	if child := f.forks.take(ctx); child != nil {
		in.box, in.conn, in.kind = child.box, child.conn, sandbox.StartForked
		child.own(in.currentState, in.ask)
		return nil
	}
	secrets, err := f.secrets()
	if err != nil {
		f.logFailure("", "", &FunctionError{Message: err.Error()})
		return err
	}
	defer wipe(secrets)
	found, err := in.bootInterpreter(ctx, secrets)
	if !found {
		if err := in.bootSandbox(ctx, secrets); err != nil {
			return err
		}
	}
	var ready channel.Ready
	if err == nil {
		ready, err = in.conn.Ready(ctx)
	}
	if err != nil {
		err = in.explain(err, "it was ready")
		in.box.Kill()
		<-in.box.Sandbox().Done()
		_ = in.conn.Close()
		var failure *FunctionError
		if errors.As(err, &failure) {
			f.logFailure(in.box.ID, "", failure)
		}
		return err
	}
	f.forks.consider(ready)
	return nil
}

// bootInterpreter makes the instance from a parked interpreter, up to LOAD. It returns false if
// none could be used; then the instance is unchanged.
func (in *instance) bootInterpreter(ctx context.Context, secrets []sandbox.Secret) (bool, error) {
	f := in.f
	if f.interpreters == nil {
		return false, nil
	}
	for pi := f.interpreters.take(f.config.Resources.MemoryBytes); pi != nil; pi = f.interpreters.take(f.config.Resources.MemoryBytes) {
		err := pi.sb.Furnish(sandbox.Furnishing{
			Work: f.work, Mounts: f.furniture.mount, Secrets: secrets, Hostname: f.plain, Limits: live.LimitsOf(f.config.Resources),
		})
		switch {
		case err == nil:
			return true, in.become(ctx, pi)
		case errors.Is(err, os.ErrProcessDone):
			f.interpreters.all.died.Add(1)
			pi.drop()
		default:
			pi.drop()
			f.host.log.WarnContext(ctx, "parked interpreter not usable: the interpreter starts with the event", "function", f.name, "error", err)
			return false, nil
		}
	}
	return false, nil
}

// become turns a furnished interpreter into the instance in.
func (in *instance) become(ctx context.Context, pi *interpreter) error {
	f := in.f
	cfg := f.channelConfig(pi.id, func() *sandbox.Sandbox { return pi.sb })
	pi.config.Store(&cfg)
	f.logs.Follow(f.host.life, live.Output{Stream: "stdout", R: pi.stdout, Revision: f.revision}, pi.id)
	f.logs.Follow(f.host.life, live.Output{Stream: "stderr", R: pi.stderr, Revision: f.revision}, pi.id)
	in.conn, in.kind = pi.conn, StartInterpreter
	in.box = in.newBox(pi.id)
	f.host.boxes.Adopt(in.box, pi.sb)
	return in.conn.Load(ctx, &f.furniture.load)
}

// bootSandbox starts the interpreter for the instance, in a sandbox of its own.
func (in *instance) bootSandbox(ctx context.Context, secrets []sandbox.Secret) error {
	spec, err := in.f.spec(live.NewID())
	if err != nil {
		return err
	}
	spec.Secrets = secrets
	ours, theirs, err := socketpair()
	if err != nil {
		return err
	}
	spec.Channel = theirs
	spec.Env = in.f.environment()
	in.conn = channel.NewConn(ours, in.f.channelConfig(spec.ID, func() *sandbox.Sandbox { return in.box.Sandbox() }))
	in.box = in.newBox(spec.ID)
	err = in.f.start(ctx, spec, in.box)
	_ = theirs.Close()
	if err != nil {
		_ = in.conn.Close()
		return err
	}
	in.kind = in.box.Sandbox().Kind()
	return nil
}
