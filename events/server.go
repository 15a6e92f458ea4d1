package events

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"
)

// maxPayload is the largest message in bytes; the default of NATS.
const maxPayload = 1 << 20

// inline is the largest body, in bytes, that travels in a message.
const inline = 512 << 10

// embedded is the NATS server in the process. After the disk was full, JetStream, or the stream
// being written, stays out of order. embedded then starts a new server on the same files, once the
// disk has room.
type embedded struct {
	opts    natsserver.Options
	log     *slog.Logger
	dir     string
	minFree int64

	mu sync.Mutex
	ns *natsserver.Server

	broken atomic.Bool // the server reported that a stream can no longer be written

	usage struct {
		sync.Mutex
		at     time.Time
		all    int64            // bytes of all streams
		tenant map[string]int64 // bytes by tenant
	}

	stop chan struct{}
	done chan struct{}
}

// noReservation exceeds the sum of all streams' limits. JetStream compares the limits, and not the
// bytes in use, with its own maximum. Service.ready enforces Config.StoreBytes.
const noReservation = 1 << 62

// serverPatience is how long the server in the process may take to start, and a client to log in.
const serverPatience = 30 * time.Second

func startEmbedded(cfg *Config) (*embedded, error) {
	e := &embedded{log: cfg.Log, dir: cfg.Dir, minFree: cfg.MinFreeBytes, stop: make(chan struct{}), done: make(chan struct{})}
	e.opts = natsserver.Options{
		ServerName: "fre", JetStream: true, StoreDir: filepath.Join(cfg.Dir, "nats"), DontListen: cfg.Listen == "",
		// An acknowledged write survives a crash of the machine.
		SyncAlways: true, NoSigs: true, MaxPayload: maxPayload, DisableJetStreamBanner: true,
		JetStreamMaxMemory: 16 << 20, JetStreamMaxStore: noReservation, AuthTimeout: serverPatience.Seconds(),
	}
	if cfg.Listen != "" {
		host, port, err := net.SplitHostPort(cfg.Listen)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		if e.opts.Port, err = strconv.Atoi(port); err != nil {
			return nil, fmt.Errorf("listen: port %q is not a number", port)
		}
		e.opts.Host = host
		if e.opts.Port == 0 {
			e.opts.Port = natsserver.RANDOM_PORT
		}
		e.opts.Users = []*natsserver.User{{Username: cfg.User, Password: cfg.Password}}
	}
	ns, err := e.start()
	if err != nil {
		return nil, err
	}
	e.ns = ns
	go e.watch()
	return e, nil
}

func (e *embedded) start() (*natsserver.Server, error) {
	opts := e.opts
	ns, err := natsserver.NewServer(&opts)
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	ns.SetLoggerV2(serverLog{e.log, &e.broken}, false, false, false)
	ns.Start()
	if !ns.ReadyForConnections(serverPatience) || !ns.JetStreamEnabled() {
		ns.Shutdown()
		ns.WaitForShutdown()
		return nil, fmt.Errorf("NATS server: JetStream does not start in %s; the engine's log says why", opts.StoreDir)
	}
	return ns, nil
}

// InProcessConn implements [nats.InProcessServer]; reconnecting leads to the current server.
func (e *embedded) InProcessConn() (net.Conn, error) {
	e.mu.Lock()
	ns := e.ns
	e.mu.Unlock()
	if ns == nil {
		return nil, nats.ErrNoServers
	}
	return ns.InProcessConn()
}

// Addr returns the address of the server's socket, nil without a socket.
func (e *embedded) Addr() net.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ns == nil || e.opts.DontListen {
		return nil
	}
	return e.ns.Addr()
}

// countEvery is how long a count of the streams' bytes stays valid.
const countEvery = time.Second

// stored returns the bytes in a tenant's streams, and in all streams.
func (e *embedded) stored(tenant string) (own, all int64) {
	u := &e.usage
	u.Lock()
	defer u.Unlock()
	if now := time.Now(); now.Sub(u.at) >= countEvery {
		e.count(now)
	}
	return u.tenant[tenant], u.all
}

// count asks the server. While the server restarts, or without storage, the old counts stay.
func (e *embedded) count(now time.Time) {
	e.mu.Lock()
	ns := e.ns
	e.mu.Unlock()
	if ns == nil {
		return
	}
	info, err := ns.Jsz(&natsserver.JSzOptions{Streams: true})
	if err != nil || info.Disabled {
		return
	}
	u := &e.usage
	u.at, u.all, u.tenant = now, int64(info.Bytes), map[string]int64{} //nolint:gosec // no disk holds 8 EiB
	for _, account := range info.AccountDetails {
		for i := range account.Streams {
			if _, tenant, ok := kindOf(account.Streams[i].Name); ok {
				u.tenant[tenant] += int64(account.Streams[i].State.Bytes) //nolint:gosec // no disk holds 8 EiB
			}
		}
	}
}

// roomAgain is the free space, in bytes, that a restart needs.
const roomAgain = 8 << 20

// watch replaces a server that has given up its storage.
func (e *embedded) watch() {
	defer close(e.done)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.stop:
			return
		}
		e.mu.Lock()
		ns := e.ns
		e.mu.Unlock()
		well := ns != nil && ns.JetStreamEnabled() && !e.broken.Load()
		if well || freeBytes(e.dir) < max(e.minFree, roomAgain) {
			continue
		}
		if ns != nil {
			e.mu.Lock()
			e.ns = nil
			e.mu.Unlock()
			ns.Shutdown()
			ns.WaitForShutdown()
		}
		e.broken.Store(false)
		ns, err := e.start()
		if err != nil {
			e.log.Error("events: start again after the disk was full", "error", err)
			continue
		}
		e.mu.Lock()
		e.ns = ns
		e.mu.Unlock()
		e.log.Info("events: the disk has space again")
	}
}

// Close stops the server.
func (e *embedded) Close() {
	close(e.stop)
	<-e.done
	if e.ns != nil {
		e.ns.Shutdown()
		e.ns.WaitForShutdown()
	}
}

// freeBytes returns the bytes free to an ordinary user below dir; 0 if unknown.
func freeBytes(dir string) int64 {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return 0
	}
	return int64(s.Bavail) * s.Bsize
}
