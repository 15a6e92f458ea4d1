package main

import (
	"os"
	"os/signal"
	"sync"
)

// onInterrupt closes kill at the first Ctrl-C; a second Ctrl-C ends fre.
func onInterrupt() (kill <-chan struct{}, stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	closed, done := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-signals:
			signal.Stop(signals)
			close(closed)
		case <-done:
		}
	})
	return closed, func() {
		signal.Stop(signals)
		close(done)
		wait.Wait()
	}
}
