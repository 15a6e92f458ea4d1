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
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func invokeCommand(c *cli) *cobra.Command {
	var (
		data, method, path string
		headers            []string
		include            bool
	)
	cmd := &cobra.Command{
		Use:   "invoke NAME",
		Short: "Send an event to a function and print its answer",
		Long: `Send an event to a function and print the answer, like POST http://ADDR/function/NAME.
--data @FILE sends the content of a file, --data - sends standard input.

fre also prints answers with an error status. The exit code is then 1 for a status from
400 to 499, and 5 for a status of 500 or more.`,
		Example: `  fre invoke hello -d '{"a": 1}'
  fre invoke hello -i -X GET --path '/items?limit=5'`,
		Args: command.Args(cobra.ExactArgs(1)), ValidArgsFunction: completeFunctions(c),
		RunE: command.Interruptible(func(cmd *cobra.Command, names []string) error {
			event := client.Event{Method: method, Header: http.Header{}}
			event.Path, event.Query, _ = strings.Cut(path, "?")
			for _, h := range headers {
				key, value, ok := strings.Cut(h, ":")
				if !ok || strings.TrimSpace(key) == "" {
					return command.Usage(fmt.Errorf("--header: %q is not NAME: VALUE", h))
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
			resp, err := cl.Functions().Invoke(cmd.Context(), names[0], event)
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
						lines = append(lines, command.Printable(key+": "+v))
					}
				}
				sort.Strings(lines)
				fmt.Fprintf(out, "%s\n\n", strings.Join(lines, "\n"))
			}
			if _, err := io.Copy(foreign(out), resp.Body); err != nil {
				return failure.Hint(fmt.Errorf("the function's answer broke off: %w", err), "read the function's log: fre logs "+names[0])
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
	f.StringVarP(&data, "data", "d", "", "body of the event: text, @`FILE`, or - for standard input")
	f.StringVarP(&method, "method", "X", "POST", "HTTP method")
	f.StringArrayVarP(&headers, "header", "H", nil, "send the header `NAME: VALUE`; may be repeated")
	f.StringVar(&path, "path", "/", "path and query after the function's name")
	f.BoolVarP(&include, "include", "i", false, "print the status and the headers too")
	return cmd
}
