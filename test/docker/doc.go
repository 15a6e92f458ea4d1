// Package docker contains only tests. The tests run Docker's own client against bin/fre, in every
// client version installed on the host.
package docker
