// Package deploy checks the examples of docs/deploy with the parsers of their formats: HCL for
// Nomad, the API types of Kubernetes, BuildKit's parser for the Dockerfile, and systemd-analyze if
// installed. The package is a separate module to keep these dependencies out of FRE's module. A
// test of cmd/fre checks the arguments and the configuration that the examples pass to fre.
package deploy
