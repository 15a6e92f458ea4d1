// Package system tests FRE as people use it: the built program, as root,
// driven by its command line, its control socket and HTTP. Run it by
//
//	make test-root
//
// or, with the program built by `make build`,
//
//	FRE_TEST_ROOT=1 go test ./test/system -run TestSystem/bad
//
// One engine serves all tests, since its base environments take tens of seconds
// to build. In the environment:
//
//	FRE_BIN            the program to test; default ../../bin/fre
//	FRE_SYSTEM_STATE   a state directory that TestPrepare made: nothing is
//	                   built, functions are deployed from its images, so that
//	                   the tests run in a machine without network
//	FRE_SYSTEM_PREPARE a directory for TestPrepare to make
//	FRE_CRASH_ROUNDS   how often the engine and the spawner are killed; default 3
package system
