//go:build nodocker

package daemon

const hasDocker = false

var newDocker func() part
