package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
	"github.com/fre-engine/fre/internal/command"
)

// cli is the state that the commands share.
type cli struct {
	socket string
	remote *client.Remote // nil: the engine is at socket
}

func (c *cli) client() *client.Client {
	if c.remote != nil {
		if cl, err := client.NewRemote(*c.remote); err == nil { // findHost has reported an error before
			return cl
		}
	}
	return client.New(c.socket)
}

// findHost finds the remote engine, unless a flag names a socket: FRE_HOST, with the token in
// FRE_TOKEN or in the file FRE_TOKEN_FILE.
func (c *cli) findHost(cmd *cobra.Command) error {
	host := os.Getenv("FRE_HOST")
	if host == "" || cmd.Flags().Changed("socket") {
		return nil
	}
	r := client.Remote{Host: host, Token: os.Getenv("FRE_TOKEN")}
	if file := os.Getenv("FRE_TOKEN_FILE"); file != "" && r.Token == "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("FRE_TOKEN_FILE: %w", err)
		}
		r.Token = strings.TrimSpace(string(raw))
	}
	if _, err := client.NewRemote(r); err != nil {
		return command.Usage(fmt.Errorf("FRE_HOST: %w", err))
	}
	c.remote = &r
	return nil
}

func defaultSocket() string {
	if v := os.Getenv("FRE_SOCKET"); v != "" {
		return v
	}
	return client.DefaultSocket
}

// each calls do for all items, also after an error, as docker does, and joins the errors.
func each(items []string, do func(string) error) error {
	var all []error
	for _, item := range items {
		if err := do(item); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
