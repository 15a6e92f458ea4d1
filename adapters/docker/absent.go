package docker

// left is a part of Docker's API that FRE deliberately omits, with an alternative.
type left struct{ method, path, what, instead string }

const noCheckpoints = "state to keep belongs into /work"

// absent lists the omitted routes. A wildcard covers a whole family of routes.
var absent = []left{
	{"POST", "/containers/{id}/exec", "exec into a running sandbox", "no process can enter a running sandbox; start another container of the image with the same /work, or inspect the sandbox with docker logs, top and stats"},
	{"", "/exec/{rest...}", "exec into a running sandbox", "start another container of the image with the same /work"},
	{"POST", "/containers/{id}/pause", "pause", "stop and start the container: the files are kept"},
	{"POST", "/containers/{id}/unpause", "pause", "stop and start the container: the files are kept"},
	{"GET", "/containers/{id}/changes", "diff of a container", "see the size of the container's changes with docker ps -s"},
	{"GET", "/containers/{id}/export", "export of a container", "save the image with docker save, and keep files in /work"},
	{"", "/containers/{id}/archive", "cp into or out of a container", "exchange files through /work: every container of the tenant may mount /work (-v /work)"},
	{"", "/containers/{id}/checkpoints/{rest...}", "checkpoints", noCheckpoints},
	{"", "/containers/{id}/checkpoints", "checkpoints", noCheckpoints},
	{"POST", "/containers/{id}/update", "update of running containers", "create a container with the new limits: /work persists"},
	{"GET", "/containers/{id}/attach/ws", "attach by WebSocket", "use POST /containers/ID/attach, as docker does"},
	{"POST", "/commit", "commit of a container", "describe the image in fret.yaml and run fre build"},
	{"POST", "/build", "Dockerfile builds", "describe the image in fret.yaml and run fre build; or build elsewhere and docker load or docker pull it"},
	{"", "/session", "Dockerfile builds", "describe the image in fret.yaml and run fre build"},
	{"", "/grpc", "Dockerfile builds", "describe the image in fret.yaml and run fre build"},
	{"GET", "/images/search", "search of Docker Hub", "use the web site, then docker pull"},
	{"GET", "/distribution/{rest...}", "look-ups at registries without a pull", "docker pull shows the digest, docker inspect the rest"},
	{"POST", "/networks/create", "custom networks", "use --network none, bridge (the public internet, if the operator allows egress) or host"},
	{"POST", "/networks/{id}/connect", "custom networks", "give --network when the container is created"},
	{"POST", "/networks/{id}/disconnect", "custom networks", "give --network when the container is created"},
	{"DELETE", "/networks/{id}", "custom networks", "none, bridge and host always exist"},
	{"POST", "/volumes/create", "custom volumes", "mount the tenant's persistent directory: -v /work"},
	{"DELETE", "/volumes/{name}", "custom volumes", "the tenant's files stay; remove files from inside a container"},
	{"", "/plugins/{rest...}", "plugins", "the program fre contains all features"},
	{"", "/swarm", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/swarm/{rest...}", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/nodes", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/nodes/{rest...}", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/services", "swarm services", "deploy a function (fre deploy): the engine scales the instances"},
	{"", "/services/{rest...}", "swarm services", "deploy a function (fre deploy): the engine scales the instances"},
	{"", "/tasks", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/tasks/{rest...}", "swarm", "FRE runs on a single host; start an engine on each host"},
	{"", "/secrets", "swarm secrets", "put files into /work, or values into the template's environment"},
	{"", "/secrets/{rest...}", "swarm secrets", "put files into /work, or values into the template's environment"},
	{"", "/configs", "swarm configs", "put files into /work, or values into the template's environment"},
	{"", "/configs/{rest...}", "swarm configs", "put files into /work, or values into the template's environment"},
}
