package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/fre-engine/fre/cluster"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/image/oci"
)

// Cluster is the configuration file's cluster. Zero value: the engine is alone.
type Cluster struct {
	Node     string `yaml:"node"`
	Registry string `yaml:"registry"`
	Address  string `yaml:"address"`
	KeyFile  string `yaml:"key_file"`
}

func (c *Cluster) read(cfg *Config) error {
	cfg.Cluster = *c
	cfg.Access.records.SharedKeyFile = c.KeyFile
	switch {
	case *c == Cluster{}:
		return nil
	case !cluster.ValidName(c.Node):
		return fmt.Errorf("node: %q is not a name: use at most 63 lower-case letters, digits and dashes", c.Node)
	case !strings.Contains(c.Registry, "/"):
		return fmt.Errorf("registry: %q is not HOST:PORT/REPOSITORY, for example registry.example.org/fre", c.Registry)
	case cfg.Events.URL == "" || cfg.EventsOff:
		return errors.New("node: a cluster of nodes needs a NATS cluster: set events.nats")
	case c.KeyFile != "" && !filepath.IsAbs(c.KeyFile):
		return fmt.Errorf("key_file: %q is not an absolute path", c.KeyFile)
	}
	if _, err := oci.Host(c.Registry + ":tag"); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

// openCluster makes the node, which is the engine's table of deployments too. From then on the
// records are shared among all nodes.
func (d *Daemon) openCluster(ctx context.Context) error {
	c := &d.cfg.Cluster
	if c.Node == "" {
		return nil
	}
	dial := d.cfg.Events
	dial.Log = d.log
	conn, err := events.Dial(&dial)
	if err != nil {
		return err
	}
	d.node, err = cluster.New(cluster.Config{
		Name: c.Node, Registry: c.Registry, Dir: filepath.Join(d.cfg.State, "cluster"), Conn: conn, Log: d.log,
		Version: d.cfg.Version.Version, Address: cmp.Or(c.Address, d.cfg.Listen), Replicas: d.cfg.Events.Replicas, Metrics: d.metrics, Records: d.records,
	})
	if err != nil {
		conn.Close()
		return err
	}
	d.undo.add(func() error { return d.node.Close(context.WithoutCancel(ctx)) })
	d.records.Share(d.node.Rows(), c.Node)
	if c.KeyFile == "" {
		d.log.WarnContext(ctx, "cluster: secrets and access keys stay on the node: to share both, give all nodes the same cluster.key_file", "node", c.Node)
	}
	return nil
}

// joinCluster joins the node to the cluster. From then on the node takes the requests.
func (d *Daemon) joinCluster(ctx context.Context) error {
	if d.node == nil {
		return nil
	}
	err := d.node.Join(ctx, d.engine)
	switch {
	case errors.Is(err, cluster.ErrNameTaken):
		return failure.Hint(err, "list nodes with fre nodes on another node")
	case errors.Is(err, cluster.ErrSkew):
		return failure.Hint(err, "list the versions with fre nodes on another node")
	case err != nil:
		return err
	}
	d.invoker, d.guard.Front = d.node, d.node.Front
	d.cfg.Events.Engine, d.cfg.Events.Elsewhere = d.node.Local(), d.node.Elsewhere
	return nil
}
