//go:build nolambda

package daemon

var newLambda func() part
