//go:build !race

package rawio

func received([]byte) {}

func sending([]byte) {}
