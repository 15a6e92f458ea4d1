// Package security attacks FRE: every row of [Rows] is an attack that is known
// to have worked elsewhere, run for real inside a real sandbox, as root:
//
//	FRE_TEST_ROOT=1 go test ./test/security
//
// A test that only sees an attack fail proves little, for the attack may be no
// good. So each is also run where it has to succeed: bare, in the surroundings of
// a plain container without FRE's defences, or in a sandbox that lacks just the
// one it is about. docs/threat-model.md says which attack meets which defence;
// test/docs compares it with Rows.
package security
