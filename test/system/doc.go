// Package system tests FRE from a user's position: the built program, as root, driven by the
// command line, the control socket and HTTP. Run the tests by
//
//	make test-root
//
// or, with the program built by `make build`,
//
//	FRE_TEST_ROOT=1 go test ./test/system -run TestSystem/bad
//
// One engine serves all tests, because building the base environments takes tens of seconds. The
// tests read these environment variables:
//
//	FRE_BIN            the program under test; default ../../bin/fre
//	FRE_SYSTEM_STATE   a state directory made by TestPrepare: the tests deploy
//	                   functions from its images, build nothing, and run on
//	                   machines without a network
//	FRE_SYSTEM_PREPARE a directory for TestPrepare to make
//	FRE_CRASH_ROUNDS   number of kills of the engine and the spawner; default 3
package system
