package adapter

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

// config is the template's configuration.
type config struct {
	bind        bool   // the adapter binds and hands the socket over
	port        int    // 0 until a port is chosen
	address     string // 127.0.0.1:port
	ready       string // path, "" for none
	timeout     time.Duration
	concurrency int
}

func configuration() (*config, error) {
	c := &config{}
	port, err := strconv.ParseUint(os.Getenv("FRE_HTTP_PORT"), 10, 16)
	if err != nil {
		return c, fmt.Errorf("FRE_HTTP_PORT: %w", err)
	}
	if c.timeout, err = time.ParseDuration(os.Getenv("FRE_HTTP_TIMEOUT")); err != nil {
		return c, fmt.Errorf("FRE_HTTP_TIMEOUT: %w", err)
	}
	if c.concurrency, err = strconv.Atoi(os.Getenv("FRE_CONCURRENCY")); err != nil {
		return c, fmt.Errorf("FRE_CONCURRENCY: %w", err)
	}
	if dir := os.Getenv("FRE_HTTP_DIR"); dir != "" { // of an ordinary image, instead of /function
		if err := os.Chdir(dir); err != nil {
			return c, fmt.Errorf("FRE_HTTP_DIR: %w", err)
		}
	}
	c.port, c.bind, c.ready = int(port), os.Getenv("FRE_HTTP_LISTEN") == "fd", os.Getenv("FRE_HTTP_READY")
	return c, nil
}
