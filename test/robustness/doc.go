// Package robustness runs the built program among hostile functions and clients, and sees
// that nobody else suffers:
//
//	FRE_TEST_ROOT=1 go test ./test/robustness
//
// The functions are one static program without a base, so that nothing is built
// and nothing is fetched, but for the templates of TestSoak. FRE_BIN names the program
// to test; default ../../bin/fre.
package robustness
