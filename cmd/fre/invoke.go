package main

import (
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/client"
)

func (c *cli) invokeCommand() *cobra.Command {
	var (
		data, method, path string
		headers            []string
		include            bool
	)
	cmd := &cobra.Command{
		Use:   "invoke NAME",
		Short: "Send an event to a function and print its answer",
		Long: `Send an event to a function and print its answer, as
POST http://ADDR/function/NAME does. --data @FILE sends a file, --data - stdin.
An answer with a status from 400 is printed too; from 500 the exit code is 5,
below 1.`,
		Args: args(cobra.ExactArgs(1)), ValidArgsFunction: c.completeFunctions,
		RunE: interruptible(func(cmd *cobra.Command, names []string) error {
			event := client.Event{Method: method, Header: http.Header{}}
			event.Path, event.Query, _ = strings.Cut(path, "?")
			for _, h := range headers {
				key, value, ok := strings.Cut(h, ":")
				if !ok || strings.TrimSpace(key) == "" {
					return usageError{fmt.Errorf("--header: %q is not NAME: VALUE", h)}
				}
				event.Header.Add(textproto.TrimString(key), textproto.TrimString(value))
			}
			switch {
			case data == "-":
				event.Body = cmd.InOrStdin()
			case strings.HasPrefix(data, "@"):
				f, err := os.Open(data[1:])
				if err != nil {
					return err
				}
				defer f.Close()
				event.Body = f
			case data != "":
				event.Body = strings.NewReader(data)
			}
			if event.Body != nil && event.Header.Get("Content-Type") == "" {
				event.Header.Set("Content-Type", "application/octet-stream")
			}
			cl := c.client()
			defer cl.Close()
			resp, err := cl.Invoke(cmd.Context(), names[0], event)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			out := cmd.OutOrStdout()
			if include {
				fmt.Fprintf(out, "HTTP %s\n", resp.Status)
				var lines []string
				for key, values := range resp.Header {
					for _, v := range values {
						lines = append(lines, printable(key+": "+v))
					}
				}
				sort.Strings(lines)
				fmt.Fprintf(out, "%s\n\n", strings.Join(lines, "\n"))
			}
			if _, err := io.Copy(foreign(out), resp.Body); err != nil {
				return &hintError{fmt.Errorf("function broke off its answer: %w", err), "fre logs " + names[0]}
			}
			switch {
			case resp.StatusCode >= 500:
				return silentExitError(exitFunction)
			case resp.StatusCode >= 400:
				return silentExitError(exitError)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&data, "data", "d", "", "body of the event; @`FILE` or - for stdin")
	f.StringVarP(&method, "method", "X", "POST", "HTTP method")
	f.StringArrayVarP(&headers, "header", "H", nil, "`NAME: VALUE`; may be repeated")
	f.StringVar(&path, "path", "/", "path behind the function's name, with its query")
	f.BoolVarP(&include, "include", "i", false, "print status and headers too")
	return cmd
}
