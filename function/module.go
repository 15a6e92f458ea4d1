package function

import "embed"

// Module holds the files of this module. FRE compiles a function written in Go with them, so that
// the build downloads no module of FRE. Functions have no use for Module, and the linker leaves it
// out of them. Module lacks package adapter, which no function imports.
//
//go:embed go.mod go.sum *.go channel internal web
var Module embed.FS
