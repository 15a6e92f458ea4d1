package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/api"
)

// serveCommand is wired by the lead.
func serveCommand() *cobra.Command {
	return &cobra.Command{Use: "serve", Short: "Run the engine", RunE: func(*cobra.Command, []string) error { return errors.New("not wired yet") }}
}

// doctorLocal explains the host when no engine answers.
func doctorLocal() []api.Check { return nil }
