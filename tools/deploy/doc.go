// Package deploy checks the examples of docs/deploy by what reads them elsewhere:
// Nomad's language, Kubernetes' types, Docker's parser, and systemd-analyze where it
// is installed. It is a module of its own, for none of that is FRE's. What the
// examples say to fre itself is checked by its own reader, in cmd/fre.
package deploy
