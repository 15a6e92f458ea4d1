// Command fre-http is the adapter as a program, for the sandboxes of functions that do not speak the
// channel themselves (package adapter).
package main

import (
	"os"

	"github.com/fre-engine/fre/function/adapter"
)

func main() { os.Exit(adapter.Main(os.Args[1:])) }
