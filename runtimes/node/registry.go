package node

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/fre-engine/fre/image"
)

// defaultRegistry is npm's own default (npm help config, "registry").
const defaultRegistry = "https://registry.npmjs.org/"

// Limits of a registry's answers.
const (
	maxArchive  = 1 << 30   // packed
	maxDocument = 128 << 20 // a package's list of versions: some have thousands
)

// registries fetches the archives that a lock pins with the configuration of the host's npm:
// registries by scope, credentials by address, proxies, certificates. It is safe for use by several
// goroutines.
type registries struct {
	client  *http.Client
	rc      map[string]string // npmrc's keys
	address string            // registry of packages without their scope's registry
	wait    time.Duration     // before the second attempt
}

// npmrc returns the host's own npmrc without settings for the host alone, with variables replaced
// from the engine's environment (npmrc(5)); nil for none.
func npmrc(s image.Settings) ([]byte, error) {
	file := image.SettingsOf[Settings](s).RC
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("npm's configuration: %w", err)
	}
	raw = hostOnly.ReplaceAll(raw, nil)
	return variable.ReplaceAllFunc(raw, func(m []byte) []byte {
		if value, ok := os.LookupEnv(strings.TrimSuffix(string(m[2:len(m)-1]), "?")); ok {
			return []byte(value)
		}
		return m
	}), nil
}

// hostOnly matches settings that name files of the host.
var hostOnly = regexp.MustCompile(`(?m)^\s*(cafile|nodedir|prefix|cache|globalconfig|userconfig|script-shell|shell|node-options)\s*=.*$`)

var variable = regexp.MustCompile(`\$\{[A-Za-z_][A-Za-z0-9_]*\??\}`)

// newRegistries reads s. Credentials stay in memory.
func newRegistries(s image.Settings) (*registries, error) {
	raw, err := npmrc(s)
	if err != nil {
		return nil, err
	}
	r := &registries{rc: parseNpmrc(raw), wait: 500 * time.Millisecond}
	env := func(name string) string {
		for _, v := range slices.Backward(s.Env) {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
	r.address = cmp.Or(env("npm_config_registry"), r.rc["registry"], defaultRegistry)

	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxConnsPerHost, t.MaxIdleConnsPerHost = 16, 16
	t.ResponseHeaderTimeout = time.Minute
	none := cmp.Or(env("npm_config_noproxy"), r.rc["noproxy"], env("no_proxy"))
	proxy := (&httpproxy.Config{
		HTTPProxy:  cmp.Or(env("npm_config_proxy"), r.rc["proxy"], env("http_proxy")),
		HTTPSProxy: cmp.Or(env("npm_config_https_proxy"), r.rc["https-proxy"], env("npm_config_proxy"), r.rc["proxy"], env("https_proxy")),
		NoProxy:    none,
	}).ProxyFunc()
	t.Proxy = func(q *http.Request) (*url.URL, error) { return proxy(q.URL) }
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if cmp.Or(env("npm_config_strict_ssl"), r.rc["strict-ssl"]) == "false" {
		t.TLSClientConfig.InsecureSkipVerify = true //nolint:gosec // as the host's npm is told to
	}
	if t.TLSClientConfig.RootCAs, err = certificates(s.CACerts); err != nil {
		return nil, err
	}
	r.client = &http.Client{Transport: t, CheckRedirect: r.redirect}
	return r, nil
}

// parseNpmrc returns the keys of an npmrc (npmrc(5)).
func parseNpmrc(raw []byte) map[string]string {
	rc := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, "=")
		if !ok || line[0] == '#' || line[0] == ';' {
			continue
		}
		rc[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"'`)
	}
	return rc
}

// certificates returns the host's certificates and the ones in file; nil, Go's default, without a
// file.
func certificates(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM(pem)
	return pool, nil
}

// close closes idle connections.
func (r *registries) close() { r.client.CloseIdleConnections() }

// redirect gives a redirected request the credentials for its new address, if any. net/http drops
// credentials of another host itself.
func (r *registries) redirect(q *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	q.Header.Del("Authorization")
	r.authorize(q)
	return nil
}

// of returns the address of a package's registry, with a slash at its end.
func (r *registries) of(name string) string {
	address := r.address
	if scope, _, ok := strings.Cut(name, "/"); ok && r.rc[scope+":registry"] != "" {
		address = r.rc[scope+":registry"]
	}
	return strings.TrimSuffix(address, "/") + "/"
}

// authorize adds npmrc's credentials for the address: the longest path with credentials counts
// (npm-registry-fetch, lib/auth.js).
func (r *registries) authorize(q *http.Request) {
	if user := q.URL.User; user != nil {
		return // net/http sends credentials of the address itself
	}
	at := "//" + q.URL.Host + path.Dir(path.Clean("/"+q.URL.EscapedPath())+"/x")
	for {
		for _, key := range []string{at, strings.TrimSuffix(at, "/") + "/"} {
			token, basic, name, word := r.rc[key+":_authToken"], r.rc[key+":_auth"], r.rc[key+":username"], r.rc[key+":_password"]
			switch {
			case token != "":
				q.Header.Set("Authorization", "Bearer "+token)
				return
			case basic != "":
				q.Header.Set("Authorization", "Basic "+basic)
				return
			case name != "" && word != "":
				if plain, err := base64.StdEncoding.DecodeString(word); err == nil {
					q.SetBasicAuth(name, string(plain))
				}
				return
			}
		}
		slash := strings.LastIndexByte(at, '/')
		if slash < 2 {
			return
		}
		at = at[:slash]
	}
}

// statusError is an answer other than 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// get fetches an address into w, at most most bytes. It calls empty before each attempt. It repeats
// attempts that may succeed, with growing pauses, up to half a minute each if the registry asks for
// that.
func (r *registries) get(ctx context.Context, address, accept string, most int64, w io.Writer, empty func() error) error {
	const attempts = 4
	for n, wait := 1, r.wait; ; n, wait = n+1, wait*2 {
		err := empty()
		if err != nil {
			return err
		}
		after, err := r.attempt(ctx, address, accept, most, w)
		if !passing(err) || n == attempts || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(min(max(wait, after), 30*time.Second)):
		case <-ctx.Done():
			return err
		}
	}
}

// passing reports whether another attempt may succeed after err.
func passing(err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return status.code == http.StatusTooManyRequests || status.code >= 500 || status.code == http.StatusRequestTimeout
	}
	var local *localError
	return err != nil && !errors.As(err, &local) && !errors.Is(err, errTooLarge)
}

var errTooLarge = errors.New("is larger than is allowed")

// localError is an error of writing the answer: not the registry's fault.
type localError struct{ error }

func (e *localError) Unwrap() error { return e.error }

func (r *registries) attempt(ctx context.Context, address, accept string, most int64, w io.Writer) (after time.Duration, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, fmt.Errorf("bad address of a registry: %w", redact(err))
	}
	q.Header.Set("Accept", accept)
	q.Header.Set("User-Agent", "fre")
	r.authorize(q)
	shown := q.URL.Redacted()
	resp, err := r.client.Do(q)
	if err != nil {
		return 0, redact(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return retryAfter(resp), refusal(resp, shown)
	}
	if resp.ContentLength > most {
		return 0, fmt.Errorf("%s has %d bytes: %w", shown, resp.ContentLength, errTooLarge)
	}
	writes := &writer{w: w}
	n, err := io.Copy(writes, io.LimitReader(resp.Body, most+1))
	switch {
	case writes.err != nil:
		return 0, &localError{writes.err}
	case err != nil:
		return 0, fmt.Errorf("%s ended after %d bytes: %w", shown, n, redact(err))
	case n > most:
		return 0, fmt.Errorf("%s has more than %d bytes: %w", shown, most, errTooLarge)
	}
	return 0, nil
}

// retryAfter returns the pause that the registry asks for, at most an hour.
func retryAfter(resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, 3600)) * time.Second
}

// refusal returns the error of an answer other than 200.
func refusal(resp *http.Response, shown string) *statusError {
	text := fmt.Sprintf("%s answers %s", shown, resp.Status)
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += ": the credentials in npm's configuration on the engine's host are missing or wrong"
	case http.StatusTooManyRequests:
		text += ": too many requests, several attempts apart: try again later"
	}
	return &statusError{resp.StatusCode, text}
}

// redact removes a password from the address in net/http's errors.
func redact(err error) error {
	var u *url.Error
	if !errors.As(err, &u) {
		return err
	}
	if at, perr := url.Parse(u.URL); perr == nil {
		return fmt.Errorf("%s: %w", at.Redacted(), u.Err)
	}
	return u.Err
}

type writer struct {
	w   io.Writer
	err error
}

func (w *writer) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.err = err
	return n, err
}

// archive fetches the archive of a package version into f and compares it with integrity. If the
// registry has no archive at the usual address, archive asks the registry for the address.
func (r *registries) archive(ctx context.Context, name, version, integrity string, f *os.File) error {
	pinned, err := strongest(integrity)
	if err != nil {
		return err
	}
	sum := pinned.sum()
	empty := func() error {
		sum.Reset()
		_, err := f.Seek(0, io.SeekStart)
		return errors.Join(err, f.Truncate(0))
	}
	to := io.MultiWriter(f, sum)
	base := r.of(name)
	err = r.get(ctx, base+name+"/-/"+path.Base(name)+"-"+version+".tgz", "*/*", maxArchive, to, empty)
	var status *statusError
	if errors.As(err, &status) && status.code < 500 && status.code != http.StatusUnauthorized && status.code != http.StatusTooManyRequests {
		var address string
		if address, err = r.tarball(ctx, base, name, version); err == nil {
			err = r.get(ctx, address, "*/*", maxArchive, to, empty)
		}
	}
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(sum.Sum(nil), pinned.want) != 1 {
		return fmt.Errorf("%w: got %s, want %s",
			errChanged, base64.StdEncoding.EncodeToString(sum.Sum(nil)), base64.StdEncoding.EncodeToString(pinned.want))
	}
	return nil
}

// errChanged contains npm's own error code, for users who search for it.
var errChanged = errors.New("EINTEGRITY: the registry's archive differs from the locked archive")

// fetched attributes an error of archive to the package or the registry.
func fetched(err error, shown string) error {
	cause := image.SiteDown
	var status *statusError
	var local *localError
	switch {
	case errors.As(err, &local), errors.Is(err, context.Canceled):
		return fmt.Errorf("packages.npm: %s: %w", shown, err)
	case errors.Is(err, errChanged):
		cause = image.PackageChanged
	case errors.Is(err, errTooLarge):
		cause = image.PackageBad
	case errors.Is(err, errGone):
		cause = image.PackageGone
	case errors.As(err, &status):
		cause = image.SiteStatus(status.code)
	}
	return &image.PackageError{Site: "npm", Package: shown, Cause: cause, Err: err}
}

// tarball asks the registry for the address of a version's archive (npm's registry,
// docs/responses/package-metadata.md).
func (r *registries) tarball(ctx context.Context, base, name, version string) (string, error) {
	var body document
	address := base + strings.Replace(name, "/", "%2f", 1)
	err := r.get(ctx, address, "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8", maxDocument, &body, body.empty)
	if err != nil {
		return "", err
	}
	var doc struct {
		Versions map[string]struct {
			Dist struct {
				Tarball string `json:"tarball"`
			} `json:"dist"`
		} `json:"versions"`
	}
	if err := json.Unmarshal(body.b, &doc); err != nil {
		return "", fmt.Errorf("the registry's list of versions: %w", err)
	}
	at, err := url.Parse(doc.Versions[version].Dist.Tarball)
	switch {
	case doc.Versions[version].Dist.Tarball == "":
		return "", fmt.Errorf("%w %s", errGone, version)
	case err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != "http":
		return "", errors.New("the registry names a bad address for the archive")
	}
	return at.String(), nil
}

// withLibc writes the registry's answers for the asked places to raw.
func (r *registries) withLibc(ctx context.Context, raw json.RawMessage, l *packageLock, asked []string) (json.RawMessage, error) {
	said := map[string]json.RawMessage{}
	for _, place := range asked {
		p := l.ByPlace[place]
		if libc := r.libc(ctx, p.name(place), p.Version); libc != nil {
			text, err := json.Marshal(libc)
			if err != nil {
				return nil, err
			}
			said[place] = text
		}
	}
	if len(said) == 0 || ctx.Err() != nil {
		return raw, ctx.Err()
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, err
	}
	var packages map[string]map[string]json.RawMessage
	if err := json.Unmarshal(all["packages"], &packages); err != nil {
		return nil, err
	}
	for place, libc := range said {
		packages[place]["libc"] = libc
	}
	text, err := json.Marshal(packages)
	if err != nil {
		return nil, err
	}
	all["packages"] = text
	return json.Marshal(all)
}

// libc returns the C libraries in a version's package.json ("libc" in npm help package-json), by
// the registry's document of one version (npm's registry, docs/REGISTRY-API.md); nil without an
// answer.
func (r *registries) libc(ctx context.Context, name, version string) []string {
	var body document
	address := r.of(name) + strings.Replace(name, "/", "%2f", 1) + "/" + url.PathEscape(version)
	if r.get(ctx, address, "application/json", maxDocument, &body, body.empty) != nil {
		return nil
	}
	var doc struct {
		Libc json.RawMessage `json:"libc"`
	}
	if json.Unmarshal(body.b, &doc) != nil {
		return nil
	}
	var many []string
	var one string
	if json.Unmarshal(doc.Libc, &many) == nil && len(many) > 0 && len(many) < 10 {
		return many
	}
	if json.Unmarshal(doc.Libc, &one) == nil && one != "" {
		return []string{one}
	}
	return nil
}

var errGone = errors.New("the registry has no version")

type document struct{ b []byte }

func (d *document) Write(p []byte) (int, error) { d.b = append(d.b, p...); return len(p), nil }
func (d *document) empty() error                { d.b = d.b[:0]; return nil }
