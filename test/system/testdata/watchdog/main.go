// Command watchdog is an HTTP server as OpenFaaS's images have one, on port 8080: it
// answers with what a path names, and otherwise with the request's body.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	fmt.Fprintln(os.Stderr, "watchdog in", os.Args[1:], wd())
	server := &http.Server{Addr: ":" + os.Getenv("PORT"), Handler: http.HandlerFunc(serve), ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}

func wd() string {
	dir, err := os.Getwd()
	if err != nil {
		return err.Error()
	}
	return dir
}

func serve(w http.ResponseWriter, r *http.Request) {
	what, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch what {
	case "env":
		fmt.Fprint(w, os.Getenv(name))
	case "file":
		text, err := os.ReadFile("/" + name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(text)
	default:
		n, _ := io.Copy(w, r.Body)
		fmt.Fprintln(os.Stderr, "answered", n, "bytes")
	}
}
