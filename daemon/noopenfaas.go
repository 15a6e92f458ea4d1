//go:build noopenfaas

package daemon

var newOpenFaaS func() part
