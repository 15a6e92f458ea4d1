// Package robustness runs the built program among hostile functions and clients, and checks that
// well-behaved functions and clients do not suffer:
//
//	FRE_TEST_ROOT=1 go test ./test/robustness
//
// The functions are one static program without a base. The tests therefore build and fetch nothing,
// except for the templates of TestSoak. FRE_BIN names the program under test; default
// ../../bin/fre.
package robustness
