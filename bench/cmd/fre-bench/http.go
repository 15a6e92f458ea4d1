package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fre-engine/fre/bench/internal/load"
	"github.com/fre-engine/fre/failure"
	"github.com/fre-engine/fre/internal/command"
)

func httpCommand() *cobra.Command {
	var c load.Config
	var headers []string
	var rate, data, format, svg string
	var insecure bool
	cmd := &cobra.Command{
		Use: "http URL...", Short: "Load an HTTP server and report rates and latencies",
		Long: `Load an HTTP/1.1 server, such as a function behind the engine, and report the number of
answered requests and their latencies. No engine is needed. See docs/load.md.

Without --rate each connection sends its next request after the last answer (closed loop).
The result is the server's highest rate. The percentiles of a closed loop mislead: a
server that stalls gets fewer requests during the stall, so the stall hardly shows
(coordinated omission).

With --rate requests are due at fixed times, independent of the answers (open loop). Each
latency counts from the time at which the request was due, even if all connections were
busy and the request was sent later. A second column counts from the time of sending. If
the columns differ, clients waited before the server served them.

Several URLs must belong to one server; fre-bench requests the URLs in turn.

The report counts failed requests by error, and includes them in the percentiles. Ctrl-C
ends the run and reports the measurements until then.`,
		Example: `  fre-bench http http://localhost:8080/function/hello -c 32
  fre-bench http http://localhost:8080/function/hello --rate 2000 -t 30s`,
		Args: command.Args(cobra.MinimumNArgs(1)),
		RunE: command.Interruptible(func(cmd *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return command.Usage(fmt.Errorf("--format: %q is neither text nor json", format))
			}
			var err error
			c.URL, c.More = args[0], args[1:]
			if c.Header, err = parseHeaders(headers); err != nil {
				return command.Usage(err)
			}
			if c.Rate, err = parseRate(rate); err != nil {
				return command.Usage(err)
			}
			if c.Body, err = bodyOf(data, cmd.InOrStdin()); err != nil {
				return err
			}
			if insecure {
				c.TLS = &tls.Config{InsecureSkipVerify: true}
			}
			report, err := load.Run(cmd.Context(), c)
			switch {
			case errors.Is(err, load.ErrConfig):
				return command.Usage(err)
			case err != nil:
				return failure.Hint(err, "is the server running? give the whole URL; for a Unix socket add --unix PATH")
			}
			if svg != "" {
				if err := writeFile(svg, func(w io.Writer) error {
					_, err := w.Write(report.SVG())
					return err
				}); err != nil {
					return err
				}
			}
			if format == "json" {
				return report.JSON(cmd.OutOrStdout())
			}
			return report.Text(cmd.OutOrStdout())
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&c.Method, "method", "X", "", "request `method` (default GET, with --data POST)")
	f.StringVarP(&data, "data", "d", "", "body of each request: `text`, @FILE, or - for standard input")
	f.StringArrayVarP(&headers, "header", "H", nil, "send the header `NAME: VALUE`; may be repeated")
	f.StringVarP(&rate, "rate", "r", "", "send requests at this rate, independent of the answers: `N` or N/s, N/m, N/h (default as fast as the server answers)")
	f.IntVarP(&c.Connections, "connections", "c", 0, "`number` of connections (default 1); with --rate the maximum number (default 1000)")
	f.DurationVarP(&c.Duration, "duration", "t", 10*time.Second, "how long to measure")
	f.DurationVar(&c.WarmUp, "warm-up", 0, "how long to send requests before the measurement")
	f.DurationVar(&c.Timeout, "timeout", 30*time.Second, "time limit of one request, from its sending")
	f.StringVar(&c.Unix, "unix", "", "`path` of a Unix socket to connect to, instead of the URL's host")
	f.BoolVarP(&insecure, "insecure", "k", false, "do not check the server's certificate")
	f.StringVar(&format, "format", "text", "`format` of the report: text, or json (one object, times in nanoseconds)")
	f.StringVar(&svg, "svg", "", "`file` for a plot of the latencies by percentile")
	return cmd
}

// parseHeaders reads headers in curl's format.
func parseHeaders(lines []string) (http.Header, error) {
	h := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("--header %q: give a name and a value, as in 'Accept: text/plain'", line)
		}
		h.Add(name, strings.TrimSpace(value))
	}
	return h, nil
}

// parseRate converts "100", "100/s", "6000/m" or "1/h" to requests per second; "" is 0.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	count, unit, _ := strings.Cut(text, "/")
	per, ok := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(count, 64)
	if err != nil || !ok || !(n > 0) || n > 1e9 {
		return 0, fmt.Errorf("--rate %q: give requests per second such as 100, or 6000/m", text)
	}
	return n / per, nil
}

// bodyOf returns data, the content of @FILE, or standard input for "-".
func bodyOf(data string, stdin io.Reader) ([]byte, error) {
	if data == "-" {
		return io.ReadAll(stdin)
	}
	if path, ok := strings.CutPrefix(data, "@"); ok {
		return os.ReadFile(path)
	}
	return []byte(data), nil
}
