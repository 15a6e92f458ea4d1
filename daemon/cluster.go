package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fre-engine/fre/access"
	"github.com/fre-engine/fre/cluster"
	"github.com/fre-engine/fre/engine"
	"github.com/fre-engine/fre/events"
	"github.com/fre-engine/fre/image/oci"
)

// Cluster is the configuration file's cluster. Zero value: the engine is alone.
type Cluster struct {
	Node     string `yaml:"node"`
	Registry string `yaml:"registry"`
	Address  string `yaml:"address"`
	KeyFile  string `yaml:"key_file"`
}

func (c *Cluster) check(cfg *Config) error {
	switch {
	case *c == Cluster{}:
		return nil
	case !cluster.ValidName(c.Node):
		return fmt.Errorf("node: %q is no name: lower-case letters, digits and dashes, 63 at most", c.Node)
	case !strings.Contains(c.Registry, "/"):
		return fmt.Errorf("registry: %q is not HOST:PORT/REPOSITORY, such as registry.example.org/fre", c.Registry)
	case cfg.Events.URL == "" || cfg.EventsOff:
		return errors.New("node: nodes meet at a NATS cluster: name it by events.nats")
	case c.KeyFile != "" && !filepath.IsAbs(c.KeyFile):
		return fmt.Errorf("key_file: %q is not an absolute path", c.KeyFile)
	}
	if _, err := oci.Host(c.Registry + ":tag"); err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

// open makes the node and the table of deployments; nil for an engine without a cluster. From then
// on the records are shared among all nodes.
func (c *Cluster) open(cfg *Config, records *access.Access, log *slog.Logger, metrics prometheus.Registerer) (*cluster.Node, engine.Table, error) {
	if c.Node == "" {
		return nil, nil, nil
	}
	dial := cfg.Events
	dial.Log = log
	conn, err := events.Dial(&dial)
	if err != nil {
		return nil, nil, err
	}
	address := c.Address
	if address == "" {
		address = cfg.Listen
	}
	n, err := cluster.New(cluster.Config{
		Name: c.Node, Registry: c.Registry, Dir: filepath.Join(cfg.State, "cluster"), Conn: conn, Log: log,
		Version: cfg.Version.Version, Address: address, Replicas: cfg.Events.Replicas, Metrics: metrics, Records: records,
	})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	records.Share(n.Rows(), c.Node)
	if c.KeyFile == "" {
		log.Warn("cluster: secrets and access keys are this node's own: name a key that all nodes have (cluster.key_file)", "node", c.Node)
	}
	return n, n, nil
}

// joinCluster joins the node to the cluster.
func joinCluster(ctx context.Context, n *cluster.Node, eng *engine.Engine) error {
	err := n.Join(ctx, eng)
	switch {
	case errors.Is(err, cluster.ErrNameTaken):
		return &hintError{err, "fre nodes on another node lists them"}
	case errors.Is(err, cluster.ErrSkew):
		return &hintError{err, "fre nodes on another node lists their versions"}
	}
	return err
}
