package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	digest     = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	repository = "registry.example.org/team/app"
)

// pair makes keys and reads them back.
func pair(t testing.TB, kind string) (crypto.Signer, PublicKey) {
	t.Helper()
	private, public, err := Generate(kind, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if !Encrypted(private) || Encrypted(public) {
		t.Error("only private keys are encrypted")
	}
	if _, err := ParsePrivate(private, []byte("guess")); !errors.Is(err, ErrPassword) {
		t.Errorf("with another password: error %v, want %v", err, ErrPassword)
	}
	key, err := ParsePrivate(private, []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	pub, err := ParsePublic("team.pub", public)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParsePublic("x", private); err == nil || !strings.Contains(err.Error(), ".pub") {
		t.Errorf("a private key for a public one: %v", err)
	}
	return key, pub
}

// bare is a pair that never was in a file.
func bare(t testing.TB) (crypto.Signer, PublicKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return private, PublicKey{"team.pub", public}
}

// TestVerify: A signature is valid only for its own payload, key, digest and repository.
func TestVerify(t *testing.T) {
	for _, kind := range []string{KindECDSA, KindEd25519} {
		t.Run(kind, func(t *testing.T) {
			key, public := pair(t, kind)
			_, other := bare(t)
			sign := func(message []byte) string {
				sig, err := Sign(key, message)
				if err != nil {
					t.Fatal(err)
				}
				return base64.StdEncoding.EncodeToString(sig)
			}
			message := Payload(repository+":1.0", digest)
			theirs := sign(message) // as cosign signs with the key
			if key, ok := key.(ed25519.PrivateKey); ok {
				sum := sha512.Sum512(message)
				sig, err := key.Sign(nil, sum[:], &ed25519.Options{Hash: crypto.SHA512})
				if err != nil {
					t.Fatal(err)
				}
				theirs = base64.StdEncoding.EncodeToString(sig)
			}
			otherType := []byte(strings.ReplaceAll(string(message), claimType, "atomic container signature"))
			cases := []byte(strings.Replace(string(message), "{", `{"Critical":{},`, 1))
			again := []byte(strings.Replace(string(message), `"critical":{`, "\"critical\":{\"\u0131mage\":{},\"typ\\u0065\":\"x\",", 1))
			twice := append([]byte(nil), append(message, message...)...)
			for _, c := range []struct {
				name       string
				keys       []PublicKey
				message    []byte
				sig        string
				repository string
				digest     string
				says       string
			}{
				{"good", []PublicKey{other, public}, message, sign(message), repository, digest, ""},
				{"good by cosign", []PublicKey{other, public}, message, theirs, repository, digest, ""},
				{"by cosign, another key", []PublicKey{other}, message, theirs, repository, digest, "no configured key matches"},
				{"by cosign, another message", []PublicKey{public}, Payload(repository, digest), theirs, repository, digest, "no configured key matches"},
				{"good for any repository", []PublicKey{public}, message, sign(message), "", digest, ""},
				{"not a key", nil, message, sign(message), repository, digest, "no configured key matches"},
				{"another key", []PublicKey{other}, message, sign(message), repository, digest, "no configured key matches"},
				{"another message", []PublicKey{public}, Payload(repository, digest), sign(message), repository, digest, "no configured key matches"},
				{"another digest", []PublicKey{public}, message, sign(message), repository, "sha256:" + strings.Repeat("0", 64), "signature of"},
				{"another repository", []PublicKey{public}, message, sign(message), repository + "2", digest, "signature for"},
				{"another kind of claim", []PublicKey{public}, otherType, sign(otherType), repository, digest, "atomic"},
				{"two messages", []PublicKey{public}, twice, sign(twice), repository, digest, "data after"},
				{"a name in two cases", []PublicKey{public}, cases, sign(cases), repository, digest, "two members"},
				{"a name twice", []PublicKey{public}, again, sign(again), repository, digest, "two members"},
				{"no base64", []PublicKey{public}, message, "?", repository, digest, "base64"},
				{"no signature", []PublicKey{public}, message, "", repository, digest, "no configured key matches"},
				{"no JSON", []PublicKey{public}, []byte("x"), sign([]byte("x")), repository, digest, "payload"},
			} {
				got, err := Verify(c.keys, c.message, c.sig, c.repository, c.digest)
				if c.says == "" && (err != nil || got.Name != "team.pub") || c.says != "" && (!errors.Is(err, ErrSignature) || !strings.Contains(fmt.Sprint(err), c.says)) {
					t.Errorf("%s: %q, error %v, want one that says %q", c.name, got.Name, err, c.says)
				}
			}
		})
	}
}

// bundleOf is a bundle as cosign 3 attaches it.
func bundleOf(t testing.TB, key crypto.Signer, statement string) []byte {
	t.Helper()
	sig, err := Sign(key, preAuthentication(statementType, []byte(statement)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]any{
		"mediaType":            BundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{
			"payload": []byte(statement), "payloadType": statementType, "signatures": []any{map[string]any{"sig": []byte("another")}, map[string]any{"sig": sig}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVerifyBundle: A bundle is valid only for its own statement, key and digest.
func TestVerifyBundle(t *testing.T) {
	key, public := bare(t)
	_, other := bare(t)
	good := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":{}}`, strings.TrimPrefix(digest, "sha256:"), predicateType)
	for _, c := range []struct {
		name   string
		keys   []PublicKey
		bundle []byte
		digest string
		says   string
	}{
		{"good", []PublicKey{public}, bundleOf(t, key, good), digest, ""},
		{"another key", []PublicKey{other}, bundleOf(t, key, good), digest, "no configured key matches"},
		{"another digest", []PublicKey{public}, bundleOf(t, key, good), "sha256:00", "not of"},
		{"another statement", []PublicKey{public}, bundleOf(t, key, strings.ReplaceAll(good, "cosign/sign", "slsa/built")), digest, "slsa"},
		{"no statement", []PublicKey{public}, []byte(`{"dsseEnvelope":{"payloadType":"x"}}`), digest, "no signed statement"},
		{"no bundle", []PublicKey{public}, []byte(`[]`), digest, "bundle"},
	} {
		_, err := VerifyBundle(c.keys, c.bundle, c.digest)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, ErrSignature) || !strings.Contains(fmt.Sprint(err), c.says)) {
			t.Errorf("%s: error %v, want one that says %q", c.name, err, c.says)
		}
	}
}

// TestCosign: Signatures and public keys of cosign are read and verified; test/cosign records them.
func TestCosign(t *testing.T) {
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join("testdata", "cosign."+name))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.TrimSuffix(b, []byte("\n"))
	}
	public, err := ParsePublic("cosign.pub", read("pub"))
	if err != nil {
		t.Fatal(err)
	}
	_, other := bare(t)
	message, sig := read("payload"), string(read("sig"))
	var p payload
	if err := json.Unmarshal(message, &p); err != nil {
		t.Fatal(err)
	}
	repository, digest := Repository(p.Critical.Identity.Reference), p.Critical.Image.Digest
	if repository == "" || !strings.HasPrefix(digest, "sha256:") {
		t.Fatalf("the payload is of %q, %q", repository, digest)
	}
	if _, err := Verify([]PublicKey{other, public}, message, sig, repository, digest); err != nil {
		t.Error(err)
	}
	if _, err := Verify([]PublicKey{other}, message, sig, repository, digest); !errors.Is(err, ErrSignature) {
		t.Errorf("another key: error %v, want %v", err, ErrSignature)
	}
	bundle := read("bundle")
	if _, err := VerifyBundle([]PublicKey{other, public}, bundle, digest); err != nil {
		t.Error(err)
	}
	for what, f := range map[string]func() error{
		"another key": func() error { _, err := VerifyBundle([]PublicKey{other}, bundle, digest); return err },
		"another digest": func() error {
			_, err := VerifyBundle([]PublicKey{public}, bundle, "sha256:"+strings.Repeat("0", 64))
			return err
		},
	} {
		if err := f(); !errors.Is(err, ErrSignature) {
			t.Errorf("a bundle, %s: error %v, want %v", what, err, ErrSignature)
		}
	}
}

// TestRepository: A reference's repository has its full name, with the registry's host.
func TestRepository(t *testing.T) {
	for ref, want := range map[string]string{
		"": "", "busybox": "docker.io/library/busybox", "team/app:1": "docker.io/team/app", "localhost/x": "localhost/x", "index.docker.io/library/x:1": "docker.io/library/x",
		"localhost:5000/x:1": "localhost:5000/x", "registry.example.org/a/b@sha256:00": "registry.example.org/a/b", "registry.example.org:5000/a": "registry.example.org:5000/a",
	} {
		if got := Repository(ref); got != want {
			t.Errorf("Repository(%q) = %q, want %q", ref, got, want)
		}
	}
}

// TestPolicy: A policy finds the rule for a repository, and a faulty rule is refused.
func TestPolicy(t *testing.T) {
	dir := t.TempDir()
	_, public, err := Generate(KindEd25519, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "team.pub")
	if err := os.WriteFile(file, public, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Read([]RuleConfig{
		{Repository: "registry.example.org/team/*", Accept: "signed", Keys: []string{file}},
		{Repository: "registry.example.org/team/public/**", Accept: "any"},
		{Repository: "*.example.org/**", Accept: "none"},
		{Repository: "docker.io/library/busybox", Accept: "signed", Keys: []string{file}, Identity: "any"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for repository, want := range map[string]Accept{
		"registry.example.org/team/app": AcceptSigned, "registry.example.org/team/a/b": AcceptNone, "registry.example.org/team/public/a/b": AcceptAny,
		"registry.example.org/other": AcceptNone, "docker.io/library/busybox": AcceptSigned, "docker.io/library/alpine": AcceptAny, "localhost:5000/x": AcceptAny,
		"registry_example.org/team/app": AcceptAny, "xregistry.example.org/team/app": AcceptNone,
	} {
		if got := p.For(repository); got.Accept != want {
			t.Errorf("%s: rule %+v, want %s", repository, got, want)
		}
	}
	if r := p.For("docker.io/library/busybox"); !r.AnyIdentity || len(r.Keys) != 1 || r.Keys[0].Name != file {
		t.Errorf("busybox: %+v", r)
	}
	for _, c := range []struct {
		rule RuleConfig
		says string
	}{
		{RuleConfig{Accept: "any"}, "pattern"},
		{RuleConfig{Repository: "a.b/**/c", Accept: "any"}, "pattern"},
		{RuleConfig{Repository: "busybox", Accept: "any"}, "docker.io/busybox"},
		{RuleConfig{Repository: "team/app", Accept: "any"}, "docker.io/team/app"},
		{RuleConfig{Repository: "**"}, `"signed", "any" or "none"`},
		{RuleConfig{Repository: "**", Accept: "signed"}, "keys"},
		{RuleConfig{Repository: "**", Accept: "any", Keys: []string{file}}, "accept: signed"},
		{RuleConfig{Repository: "**", Accept: "any", Identity: "x"}, "identity"},
		{RuleConfig{Repository: "**", Accept: "signed", Keys: []string{file + "x"}}, "no such file"},
		{RuleConfig{Repository: "**", Accept: "signed", Keys: []string{"policy.go"}}, "not a key"},
	} {
		if _, err := Read([]RuleConfig{c.rule}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: error %v, want one that says %q", c.rule, err, c.says)
		}
	}
}

// TestKeysRefused: Weak keys, and keys that take forever to open, are refused.
func TestKeysRefused(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.PublicKey{weak.Public(), large.Public()} {
		b, err := MarshalPublic(key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePublic("x", b); err == nil || !strings.Contains(err.Error(), "P-256") {
			t.Errorf("%T: error %v", key, err)
		}
	}
	var s sealed
	s.KDF.Name, s.Cipher.Name, s.Cipher.Nonce = kdfName, cipherName, make([]byte, 24)
	s.KDF.Params.N, s.KDF.Params.R, s.KDF.Params.P = 1<<30, 8, 1
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(b, nil); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("scrypt with a TiB: error %v", err)
	}
	if _, _, err := Generate("rsa", nil); err == nil {
		t.Error("an RSA key was made")
	}
	if diff := cmp.Diff(`{"critical":{"identity":{"docker-reference":"a/b"},"image":{"docker-manifest-digest":"d"},"type":"cosign container image signature"},"optional":null}`, string(Payload("a/b", "d"))); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
}

// FuzzVerify: Only signed content is verified, with exactly the signed message.
func FuzzVerify(f *testing.F) {
	key, public := bare(f)
	message := Payload(repository, digest)
	sig, err := Sign(key, message)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message, base64.StdEncoding.EncodeToString(sig))
	f.Add(bundleOf(f, key, "{}"), "")
	f.Fuzz(func(t *testing.T, b []byte, s string) {
		if _, err := Verify([]PublicKey{public}, b, s, repository, digest); err == nil && string(b) != string(message) {
			t.Errorf("%q is signed", b)
		}
		if _, err := VerifyBundle([]PublicKey{public}, b, digest); err == nil {
			t.Errorf("%q is a signed bundle", b)
		}
		// The parser sees arbitrary signed content.
		sig, err := Sign(key, b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify([]PublicKey{public}, b, base64.StdEncoding.EncodeToString(sig), repository, digest); err != nil && !errors.Is(err, ErrSignature) {
			t.Error(err)
		}
	})
}

// FuzzKey: An invalid key is refused.
func FuzzKey(f *testing.F) {
	private, public, err := Generate(KindECDSA, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(public)
	f.Add([]byte(strings.ReplaceAll(string(private), "A", "B")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := ParsePublic("x", b); err == nil && supported(k.Key) != nil {
			t.Errorf("%T was taken", k.Key)
		}
		_ = Encrypted(b)
	})
}

// FuzzPolicy: A rule is refused, or matches fast.
func FuzzPolicy(f *testing.F) {
	f.Add("registry.example.org/*/a/**", "registry.example.org/team/a/b")
	f.Add("**", "")
	f.Add("*.*.*.*/*", "a.b.c.d/e")
	f.Fuzz(func(t *testing.T, pattern, repository string) {
		p, err := Read([]RuleConfig{{Repository: pattern, Accept: "none"}})
		if err != nil {
			return
		}
		if r := p.For(repository); !strings.ContainsRune(pattern, '*') && (r.Accept == AcceptNone) != (pattern == repository) {
			t.Errorf("%q and %q: %+v", pattern, repository, r)
		}
	})
}
