package api

// Node is an engine among those that work together, as the one that is asked sees it.
type Node struct {
	Name      string   `json:"name"`
	Self      bool     `json:"self"`    // it is the one that is asked
	State     string   `json:"state"`   // ready, draining, drained, partitioned (the one that is asked reaches no other), lost, unknown (the one that is asked cannot tell)
	Version   string   `json:"version"` // of fre
	Protocol  int      `json:"protocol"`
	Address   string   `json:"address"` // of its gateway
	Memory    int64    `json:"memory"`  // bytes that are free
	Instances int      `json:"instances"`
	Busy      int      `json:"busy"`    // events under way
	Warm      []string `json:"warm"`    // functions with an instance that is free, 500 at most
	Lacking   []string `json:"lacking"` // functions that are deployed and not in force there yet, 500 at most
	SeenMS    int64    `json:"seen_ms"` // milliseconds since it was heard of
}
