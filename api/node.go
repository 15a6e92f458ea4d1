package api

// Node is an engine of a cluster, as seen by the answering engine.
type Node struct {
	Name      string   `json:"name"`
	Self      bool     `json:"self"`    // this node is the answering engine
	State     string   `json:"state"`   // ready, draining, drained, partitioned (the answering engine reaches no other node), lost, unknown (the answering engine cannot tell)
	Version   string   `json:"version"` // of fre
	Protocol  int      `json:"protocol"`
	Address   string   `json:"address"` // of its gateway
	Memory    int64    `json:"memory"`  // free bytes
	Instances int      `json:"instances"`
	Busy      int      `json:"busy"`    // events in progress
	Warm      []string `json:"warm"`    // functions with a free instance, at most 500
	Lacking   []string `json:"lacking"` // deployed functions that the node has not activated yet, at most 500
	SeenMS    int64    `json:"seen_ms"` // milliseconds since the node's last message
}
