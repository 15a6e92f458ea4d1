// Package cosign_test signs with cosign and verifies with FRE, and the reverse, at a registry with
// keys only: without a log and without certificates. make test-cosign builds cosign, which takes
// minutes; other tests use recorded signatures of cosign (image/signature/testdata).
package cosign_test

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fre-engine/fre/image/oci"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/fretest"
	"github.com/fre-engine/fre/internal/testdaemon"
	"github.com/fre-engine/fre/store"
)

var update = flag.Bool("update", false, "write what cosign wrote to image/signature/testdata")

const password = "secret"

// peer is cosign with an empty home directory: no logins, no cache.
type peer struct{ program, home string }

func (p peer) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(p.program, args...)
	cmd.Dir = p.home
	cmd.Env = []string{"HOME=" + p.home, "COSIGN_PASSWORD=" + password, "PATH=/usr/bin:/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p peer) ok(t *testing.T, args ...string) {
	t.Helper()
	if out, err := p.run(t, args...); err != nil {
		t.Fatalf("cosign %q: %v\n%s", args, err, out)
	}
}

// Without these flags cosign asks the public log and its root of trust.
var (
	signOffline   = []string{"sign", "--yes", "--tlog-upload=false", "--use-signing-config=false", "--allow-http-registry"}
	verifyOffline = []string{"verify", "--insecure-ignore-tlog=true", "--private-infrastructure=true", "--allow-http-registry"}
)

// pair is a pair of keys on disk and in memory.
type pair struct {
	file    string // without .key and .pub
	private crypto.Signer
	public  signature.PublicKey
}

func readPair(t *testing.T, file string) pair {
	t.Helper()
	private, err := os.ReadFile(file + ".key")
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	p := pair{file: file}
	if p.private, err = signature.ParsePrivate(private, []byte(password)); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if p.public, err = signature.ParsePublic(filepath.Base(file), public); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return p
}

// pairs returns pairs of keys made by cosign and by FRE.
func pairs(t *testing.T, c peer) map[string]pair {
	t.Helper()
	c.ok(t, "generate-key-pair", "--output-key-prefix", "theirs")
	all := map[string]pair{"theirs": readPair(t, filepath.Join(c.home, "theirs"))}
	for _, kind := range []string{signature.KindECDSA, signature.KindEd25519} {
		private, public, err := signature.Generate(kind, []byte(password))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(c.home, kind)
		if err := errors.Join(os.WriteFile(file+".key", private, 0o600), os.WriteFile(file+".pub", public, 0o644)); err != nil {
			t.Fatal(err)
		}
		all[kind] = readPair(t, file)
	}
	return all
}

func openStore(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// FRE and cosign accept each other's signatures, with keys made by either, and refuse signatures by
// another key. FRE also accepts cosign's bundles if the policy allows any repository.
func TestCosign(t *testing.T) {
	c := peer{fretest.Tool(t, "cosign"), t.TempDir()}
	keys := pairs(t, c)
	host := fretest.Registry(t)
	state := t.TempDir()
	program := filepath.Join(state, "program")
	if err := os.WriteFile(program, []byte("nothing runs it"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := testdaemon.PutImages(t.Context(), state, testdaemon.Function{Name: "fn", Program: program}); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(state, "store"))
	img, err := s.Image("fn:1")
	if err != nil {
		t.Fatal(err)
	}
	// push sends the image to a repository of its own.
	push := func(t *testing.T, repository string) string {
		t.Helper()
		sent, err := oci.Push(t.Context(), s, img, repository+":1", oci.PushOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(sent.Digest)
	}
	pull := func(t *testing.T, repository string, key signature.PublicKey, anyIdentity bool) error {
		t.Helper()
		_, _, err := oci.Pull(t.Context(), openStore(t, t.TempDir()), repository+":1", oci.PullOptions{Policy: signature.Policy{{
			Repository: host + "/**", Accept: signature.AcceptSigned, Keys: []signature.PublicKey{key}, AnyIdentity: anyIdentity,
		}}})
		return err
	}
	_, strange, err := signature.Generate(signature.KindECDSA, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.home, "strange.pub"), strange, 0o644); err != nil {
		t.Fatal(err)
	}
	stranger, err := signature.ParsePublic("strange.pub", strange)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range keys {
		t.Run("FRE signs with "+name, func(t *testing.T) {
			repository := host + "/ours/" + name
			digest := push(t, repository)
			payload := signature.Payload(repository, digest)
			sig, err := signature.Sign(key.private, payload)
			if err != nil {
				t.Fatal(err)
			}
			if err := oci.Attach(t.Context(), repository+"@"+digest, payload, base64.StdEncoding.EncodeToString(sig), oci.RegistryOptions{}); err != nil {
				t.Fatal(err)
			}
			c.ok(t, append(verifyOffline, "--key", key.file+".pub", repository+"@"+digest)...)
			c.ok(t, append(verifyOffline, "--key", key.file+".pub", repository+":1")...)
			if out, err := c.run(t, append(verifyOffline, "--key", filepath.Join(c.home, "strange.pub"), repository+":1")...); err == nil {
				t.Errorf("cosign takes it with another key:\n%s", out)
			}
		})
		t.Run("cosign signs with "+name, func(t *testing.T) {
			repository := host + "/theirs/" + name
			digest := push(t, repository)
			if err := pull(t, repository, key.public, false); !errors.Is(err, oci.ErrSignature) {
				t.Fatalf("before it is signed: %v", err)
			}
			c.ok(t, append(signOffline, "--new-bundle-format=false", "--key", key.file+".key", repository+"@"+digest)...)
			if err := pull(t, repository, key.public, false); err != nil {
				t.Error(err)
			}
			if err := pull(t, repository, stranger, false); !errors.Is(err, oci.ErrSignature) {
				t.Errorf("with another key: %v", err)
			}
			if *update && name == "theirs" {
				record(t, host, "theirs/"+name, digest, key)
			}
		})
		t.Run("cosign bundles with "+name, func(t *testing.T) {
			repository := host + "/bundles/" + name
			digest := push(t, repository)
			c.ok(t, append(signOffline, "--key", key.file+".key", repository+"@"+digest)...)
			for _, anyIdentity := range []bool{true, false} { // a bundle names no repository
				if err := pull(t, repository, key.public, anyIdentity); anyIdentity && err != nil || !anyIdentity && !errors.Is(err, oci.ErrSignature) {
					t.Errorf("any identity: %v: %v", anyIdentity, err)
				}
			}
			if err := pull(t, repository, stranger, true); !errors.Is(err, oci.ErrSignature) {
				t.Errorf("with another key: %v", err)
			}
			if *update && name == "theirs" {
				recordBundle(t, host, "bundles/"+name, digest)
			}
		})
	}
}

// recorded is the directory of the files that image/signature.TestCosign reads.
const recorded = "../../image/signature/testdata"

// get fetches a manifest or a blob from the registry.
func get(t *testing.T, host, path string, v any) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/v2/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	if v != nil {
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

type manifest struct {
	ArtifactType string
	Manifests    []struct{ Digest string }
	Layers       []struct {
		Digest      string
		Annotations map[string]string
	}
}

func record(t *testing.T, host, repository, digest string, key pair) {
	t.Helper()
	var m manifest
	get(t, host, repository+"/manifests/"+strings.Replace(digest, ":", "-", 1)+".sig", &m)
	write(t, "cosign.payload", get(t, host, repository+"/blobs/"+m.Layers[0].Digest, nil))
	write(t, "cosign.sig", []byte(m.Layers[0].Annotations["dev.cosignproject.cosign/signature"]))
	b, err := os.ReadFile(key.file + ".pub") // the private key is not kept
	if err != nil {
		t.Fatal(err)
	}
	write(t, "cosign.pub", b)
}

func recordBundle(t *testing.T, host, repository, digest string) {
	t.Helper()
	var index manifest
	get(t, host, repository+"/manifests/"+strings.Replace(digest, ":", "-", 1), &index) // the registry has no referrers API
	for _, d := range index.Manifests {
		var m manifest
		get(t, host, repository+"/manifests/"+d.Digest, &m)
		if m.ArtifactType == signature.BundleType && len(m.Layers) == 1 {
			write(t, "cosign.bundle", get(t, host, repository+"/blobs/"+m.Layers[0].Digest, nil))
			return
		}
	}
	t.Fatalf("no bundle among %+v", index)
}

func write(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(recorded, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(recorded, name), append(bytes.TrimRight(b, "\n"), '\n'), 0o644); err != nil {
		t.Fatal(fmt.Errorf("record: %w", err))
	}
}
