// Package fretest holds helpers for the tests of several packages: the check for root, the check
// for leaks, a seeded random source and a small root file system to start programs in.
package fretest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// RequireRoot skips the test without root. With FRE_TEST_ROOT=1 (CI) RequireRoot fails the test
// instead, to keep skips from going unnoticed.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("FRE_TEST_ROOT") == "1" {
		t.Fatal("needs root, and FRE_TEST_ROOT=1 says this is a run with root")
	}
	t.Skip("needs root")
}

// Rand returns a random source and prints its seed; FRE_TEST_SEED sets it.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FRE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("FRE_TEST_SEED=%q: %v", s, err)
		}
		seed = n
	}
	t.Logf("FRE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
