//go:build !race

package linux

func received([]byte) {}

func sending([]byte) {}
