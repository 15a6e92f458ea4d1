package docker

import (
	"cmp"
	"net/http"
)

// left is a part of Docker's API that FRE deliberately omits, with an alternative.
type left struct{ method, path, what, instead string }

// refuse returns the error for l, or a 404 if the object in the path does not exist.
func (s *server) refuse(l left, r *http.Request) error {
	return cmp.Or(s.exists(l.path, r), leftOut(l.what, l.instead))
}

const noCheckpoints = "state to keep belongs into /work"

// absent lists the omitted routes. A wildcard covers a whole family of routes.
var absent = []left{
	{"POST", "/containers/{id}/exec", "exec into a running sandbox", "nothing enters one from outside once it has begun; start another container of the image with the same /work, or use docker logs, top and stats to look at it"},
	{"", "/exec/{rest...}", "exec into a running sandbox", "start another container of the image with the same /work"},
	{"POST", "/containers/{id}/pause", "pause", "stop the container and start it again: its files are kept"},
	{"POST", "/containers/{id}/unpause", "pause", "stop the container and start it again: its files are kept"},
	{"GET", "/containers/{id}/changes", "diff of a container", "docker ps -s shows the size of what it has written"},
	{"GET", "/containers/{id}/export", "export of a container", "docker save writes its image; files to keep belong into /work"},
	{"", "/containers/{id}/archive", "cp into or out of a container", "exchange files through /work, which every container of the tenant may mount (-v /work)"},
	{"", "/containers/{id}/checkpoints/{rest...}", "checkpoints", noCheckpoints},
	{"", "/containers/{id}/checkpoints", "checkpoints", noCheckpoints},
	{"POST", "/containers/{id}/update", "update of what runs", "make another container with other limits: /work persists"},
	{"GET", "/containers/{id}/attach/ws", "attach by WebSocket", "use POST /containers/ID/attach, as docker does"},
	{"POST", "/commit", "commit of a container", "describe the image in fret.yaml and build it: fre build"},
	{"POST", "/build", "Dockerfile builds", "describe the image in fret.yaml and build it: fre build; or build elsewhere and docker load or docker pull it"},
	{"", "/session", "Dockerfile builds", "describe the image in fret.yaml and build it: fre build"},
	{"", "/grpc", "Dockerfile builds", "describe the image in fret.yaml and build it: fre build"},
	{"GET", "/images/search", "search of Docker Hub", "use the web site, then docker pull"},
	{"GET", "/distribution/{rest...}", "look-ups at registries without a pull", "docker pull shows the digest, docker inspect the rest"},
	{"POST", "/networks/create", "custom networks", "use --network none, bridge (the public internet, where the operator allows it) or host"},
	{"POST", "/networks/{id}/connect", "custom networks", "give --network when the container is created"},
	{"POST", "/networks/{id}/disconnect", "custom networks", "give --network when the container is created"},
	{"DELETE", "/networks/{id}", "custom networks", "none, bridge and host are always there"},
	{"POST", "/volumes/create", "custom volumes", "mount the tenant's persistent directory: -v /work"},
	{"DELETE", "/volumes/{name}", "custom volumes", "the tenant's files stay; remove them from inside"},
	{"", "/plugins/{rest...}", "plugins", "what FRE can do is in the one program"},
	{"", "/swarm", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/swarm/{rest...}", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/nodes", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/nodes/{rest...}", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/services", "swarm services", "deploy a function: fre deploy keeps as many instances as it needs"},
	{"", "/services/{rest...}", "swarm services", "deploy a function: fre deploy keeps as many instances as it needs"},
	{"", "/tasks", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/tasks/{rest...}", "swarm", "FRE runs on one host; start one engine on each"},
	{"", "/secrets", "swarm secrets", "put files into /work, or values into the template's environment"},
	{"", "/secrets/{rest...}", "swarm secrets", "put files into /work, or values into the template's environment"},
	{"", "/configs", "swarm configs", "put files into /work, or values into the template's environment"},
	{"", "/configs/{rest...}", "swarm configs", "put files into /work, or values into the template's environment"},
}
