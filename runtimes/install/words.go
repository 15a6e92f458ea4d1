package install

import (
	"errors"
	"fmt"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/store"
)

// causes matches messages of uv, pip, npm, Maven, Composer, RubyGems and the go command about
// packages and sites, the most specific first.
var causes = []struct {
	cause image.PackageCause
	words *regexp.Regexp
}{
	{image.PackageChanged, regexp.MustCompile(`[Hh]ash mismatch|DO NOT MATCH THE HASHES|EINTEGRITY|Checksum validation failed|checksum verification of the file failed|: checksum mismatch|SECURITY ERROR`)},
	{image.SiteRefused, regexp.MustCompile(`\b40[137] (Unauthorized|Forbidden|Proxy Auth)|\bE40[137]\b|(status code:?|HTTP error|HTTP/[0-9.]+"?) 40[137]\b|refusing to pass credentials to insecure URL`)},
	{image.SiteBusy, regexp.MustCompile(`\b429 Too Many|\bE429\b|(status code:?|HTTP error|HTTP/[0-9.]+"?) 429\b`)},
	{image.SiteDown, regexp.MustCompile(`\b50[0-9] (Internal|Bad|Service|Gateway|Not|HTTP)|\bE50[0-9]\b|(status code:?|HTTP error|HTTP/[0-9.]+"?) 5[0-9][0-9]\b`)},
	{image.PackageBad, regexp.MustCompile(`Failed to (extract|unzip)|[Ii]nvalid (zip|gzip|wheel)|[Nn]ot a valid (zip|wheel)|[Bb]ad CRC|is not a valid archive|errors parsing go\.mod|malformed (module|file) path`)},
	{image.PackageGone, regexp.MustCompile(`reading \S+: (404|410) |: unknown revision |exec: "git": executable file not found`)}, // only go: if a proxy lacks the module, go tries git next
	{image.SiteDown, regexp.MustCompile(`error sending request|error decoding response body|tcp connect error|dns error|Max retries exceeded|NewConnectionError|\b(ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ERR_SOCKET_TIMEOUT|ERR_STREAM_PREMATURE_CLOSE|UNABLE_TO_[A-Z_]+|SELF_SIGNED_CERT_IN_CHAIN|DEPTH_ZERO_SELF_SIGNED_CERT|CERT_HAS_EXPIRED)\b|Could not transfer|Unknown host|curl error|could not be downloaded|Could not resolve host|Connection (refused|reset|timed out)|the source cannot be (reached|used): |end of file before message length reached|` +
		`dial tcp |proxyconnect tcp: |x509: |tls: |TLS handshake|i/o timeout|((Get|read) "\S+"|reading \S+): (unexpected )?EOF|GOPROXY=off|reading \S+: [45][0-9][0-9] `)},
}

// full matches messages about a full disk, which the operator has to fix.
var full = regexp.MustCompile(`[Nn]o space left on device|[Dd]isk quota exceeded|\bENOSPC\b`)

// PackageFailed is the error of a tool of the site that printed words: *image.PackageError for a
// fault of the package or its site; *image.FieldError of the site's packages if asked matches
// words; ENOSPC for a full disk; else as [Failed].
func PackageFailed(err error, site, words string, asked *regexp.Regexp) error {
	var exit *image.ExitError
	if !errors.As(err, &exit) || words == "" {
		return err
	}
	if full.MatchString(words) {
		return fmt.Errorf("packages.%s: %s: %w", site, words, unix.ENOSPC)
	}
	for _, c := range causes {
		if c.words.MatchString(words) {
			return &image.PackageError{Site: site, Cause: c.cause, Message: words}
		}
	}
	if asked != nil && asked.MatchString(words) {
		return Failed(err, "packages."+site, words)
	}
	return Failed(err, "", words)
}

// Unpacked is the error of unpacking a package, or nil. The package is at fault, unless the engine
// had no room or was told to stop.
func Unpacked(err error, site, name string) error {
	var known *image.PackageError
	if err == nil || errors.As(err, &known) || image.Local(err) && !errors.Is(err, store.ErrFileType) {
		return err
	}
	return &image.PackageError{Site: site, Package: name, Cause: image.PackageBad, Err: err}
}
