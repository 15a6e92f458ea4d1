// Package security attacks FRE. Each row of [Rows] is an attack known to have worked elsewhere. The
// tests run the attack for real, inside a real sandbox, as root:
//
//	FRE_TEST_ROOT=1 go test ./test/security
//
// A test in which an attack fails proves little, because the attack may be faulty. Each attack
// therefore also runs in surroundings in which it succeeds: bare, as in a plain container without
// FRE's defences, or in a sandbox without the defence under test. docs/threat-model.md lists the
// defence against each attack; test/docs compares the page with Rows.
package security
