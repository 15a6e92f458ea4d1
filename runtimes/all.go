// Package runtimes lists the languages FRE runs functions in, and what their
// base environments are made of. Each language is a package below.
package runtimes

import (
	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/native"
	"github.com/fre-engine/fre/runtimes/node"
	"github.com/fre-engine/fre/runtimes/python"
)

// All returns every runtime, with the base environments of this package.
func All() []image.Runtime {
	return []image.Runtime{
		python.Runtime{Environment: PythonBase(), Tools: PythonTools()},
		node.Runtime{Environment: NodeBase(), Tools: NodeTools()},
		native.Runtime{Environment: NativeBase()},
	}
}
