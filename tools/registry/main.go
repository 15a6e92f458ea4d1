// Command registry is the distribution project's registry with its storage in files. The project's
// own program also has the clients of Amazon's, Azure's and Google's storage: they are most of what
// it compiles, and no test uses them.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if err := registry.RootCmd.Execute(); err != nil {
		os.Exit(1) // cobra has printed err
	}
}
