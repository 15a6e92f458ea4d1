package channel

import (
	"fmt"
	"strings"
)

// MaxEnviron is the largest environment that [Environ] returns, in bytes. Linux gives
// a program's arguments and environment a quarter of its stack.
const MaxEnviron = 128 << 10

// Environ returns the metadata of m as environment of a program without a channel. Such a program
// handles one event per process, with the request's body on stdin and the answer on stdout.
//
//	FRE_FUNCTION FRE_ID FRE_TENANT FRE_DEADLINE_MS FRE_METHOD FRE_PATH FRE_QUERY
//	HTTP_<NAME>   one per header: upper case, - as _, repeated ones joined by ", "
//
// Environ omits headers with a name that is not made of letters, digits and -, headers with a NUL
// in the value, and Proxy, which would become HTTP_PROXY (CVE-2016-5385). It returns
// [ErrMetaTooLarge] beyond MaxEnviron.
func Environ(m *Invocation) ([]string, error) {
	env := []string{
		"FRE_FUNCTION=" + m.Function, "FRE_ID=" + m.ID, "FRE_TENANT=" + m.Tenant,
		fmt.Sprintf("FRE_DEADLINE_MS=%d", m.DeadlineMS),
		"FRE_METHOD=" + m.Method, "FRE_PATH=" + m.Path, "FRE_QUERY=" + m.Query,
	}
	for _, v := range env {
		if strings.IndexByte(v, 0) >= 0 {
			name, _, _ := strings.Cut(v, "=")
			return nil, fmt.Errorf("%s holds a NUL byte", name)
		}
	}
	at := map[string]int{}
	for _, h := range m.Headers {
		name, ok := variable(h[0])
		if !ok || strings.IndexByte(h[1], 0) >= 0 {
			continue
		}
		if i, ok := at[name]; ok {
			env[i] += ", " + h[1]
			continue
		}
		at[name] = len(env)
		env = append(env, name+"="+h[1])
	}
	size := 0
	for _, v := range env {
		size += len(v) + 1
	}
	if size > MaxEnviron {
		return nil, fmt.Errorf("%w: %d bytes, an environment takes %d", ErrMetaTooLarge, size, MaxEnviron)
	}
	return env, nil
}

func variable(header string) (string, bool) {
	name := strings.ToUpper(header)
	for i := range len(name) {
		if c := name[i]; c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') {
			return "", false
		}
	}
	return "HTTP_" + strings.ReplaceAll(name, "-", "_"), name != "" && name != "PROXY"
}
