// Package docker holds tests only: Docker's own client against bin/fre, in
// every version of it that this host has.
package docker
