package oci

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/fre-engine/fre/image/sbom"
	"github.com/fre-engine/fre/image/signature"
	"github.com/fre-engine/fre/internal/fretest"
)

func keyPair(t testing.TB, label string) (crypto.Signer, signature.PublicKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return private, signature.PublicKey{Name: label, Key: public}
}

func signWith(t testing.TB, key crypto.Signer, message []byte) string {
	t.Helper()
	sig, err := signature.Sign(key, message)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// TestSigned: Under a policy, an image is pulled only with a signature by the policy's keys, over
// its digest, for its repository. A refused pull leaves nothing.
func TestSigned(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	release := s.Hold()
	defer release()
	img := builtImage(t, s, "fn", basePart(t, s))
	ref := w.host + "/team/fn:1"
	sent, err := Push(t.Context(), s, img, ref, PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Push(t.Context(), s, img, w.host+"/team/copy:1", PushOptions{}); err != nil {
		t.Fatal(err)
	}
	repository, digest := w.host+"/team/fn", string(sent.Digest)
	if got, err := Resolve(t.Context(), ref, RegistryOptions{}); err != nil || got != repository+"@"+digest {
		t.Errorf("Resolve: %q, %v, want %s@%s", got, err, repository, digest)
	}
	team, teamKey := keyPair(t, "team.pub")
	other, otherKey := keyPair(t, "other.pub")
	rule := func(r signature.Rule) signature.Policy {
		r.Repository, r.Accept = w.host+"/team/**", signature.AcceptSigned
		return signature.Policy{r}
	}
	byTeam := rule(signature.Rule{Keys: []signature.PublicKey{otherKey, teamKey}})
	onlyTeam := rule(signature.Rule{Keys: []signature.PublicKey{teamKey}})
	try := func(what, ref string, p signature.Policy, says string) {
		t.Helper()
		x := openStore(t)
		got, _, err := Pull(t.Context(), x, ref, PullOptions{Policy: p})
		switch {
		case says == "" && (err != nil || got.Digest != img.Digest || got.Foreign == (len(p) > 0)):
			t.Errorf("%s: %+v, %v", what, got, err)
		case says != "" && (!errors.Is(err, ErrSignature) || !strings.Contains(fmt.Sprint(err), says)):
			t.Errorf("%s: error %v, want one that says %q", what, err, says)
		case says != "":
			nothingKept(t, x)
		}
	}
	try("no policy", ref, nil, "")
	try("not signed", ref, byTeam, "has none")
	try("nothing is accepted", ref, signature.Policy{{Repository: w.host + "/**", Accept: signature.AcceptNone}}, "refuses all images")

	attach := func(key crypto.Signer, repository, of, at string) {
		t.Helper()
		payload := signature.Payload(repository, of)
		if err := Attach(t.Context(), at+"@"+digest, payload, signWith(t, key, payload), RegistryOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	attach(other, repository, digest, repository)
	try("signed by another key", ref, onlyTeam, "no configured key matches")
	attach(team, repository, "sha256:"+strings.Repeat("0", 64), repository)
	try("another digest is signed", ref, onlyTeam, "signature of")
	w.count("", "")
	attach(team, repository, digest, repository)
	attach(team, repository, digest, repository) // the same signature again
	try("signed", ref, onlyTeam, "")
	try("signed, by digest", repository+"@"+digest, byTeam, "")
	try("a copy that is not signed", w.host+"/team/copy:1", onlyTeam, "has none")
	attach(team, repository, digest, w.host+"/team/copy")
	try("a copy with the signature of another repository", w.host+"/team/copy:1", onlyTeam, `not for "`)
	try("a copy that may be signed elsewhere", w.host+"/team/copy:1", rule(signature.Rule{Keys: []signature.PublicKey{teamKey}, AnyIdentity: true}), "")

	if err := Attach(t.Context(), ref, []byte("x"), "x", RegistryOptions{}); !errors.Is(err, ErrReference) {
		t.Errorf("to a tag: error %v, want %v", err, ErrReference)
	}

	// Pulled before the policy, and again under it: now the image is trusted.
	x := openStore(t)
	for _, p := range []signature.Policy{nil, onlyTeam} {
		got, _, err := Pull(t.Context(), x, ref, PullOptions{Policy: p})
		if err != nil || got.Foreign != (p == nil) {
			t.Errorf("with %d rules: %+v, %v", len(p), got, err)
		}
	}
}

// TestSignedByBundle: A bundle of newer cosign versions counts if the policy takes any identity,
// because a bundle names no repository.
func TestSignedByBundle(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	release := s.Hold()
	defer release()
	img := builtImage(t, s, "fn", basePart(t, s))
	ref := w.host + "/team/fn:1"
	sent, err := Push(t.Context(), s, img, ref, PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, public := keyPair(t, "team.pub")
	const kind = "application/vnd.in-toto+json"
	statement := fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`, strings.TrimPrefix(string(sent.Digest), "sha256:"))
	bundle, err := json.Marshal(map[string]any{"mediaType": signature.BundleType, "dsseEnvelope": map[string]any{
		"payload": []byte(statement), "payloadType": kind,
		"signatures": []any{map[string]any{"sig": signWith(t, key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement))}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	subject, err := descriptor(types.OCIManifestSchema1, sent.Digest, sent.Size)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := descriptor(signature.BundleType, digestOf(bundle), int64(len(bundle)))
	if err != nil {
		t.Fatal(err)
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: signature.BundleType, Layers: []v1.Descriptor{layer}}
	if err := (RegistryOptions{}).refer(t.Context(), mustRepository(t, w.host+"/team/fn"), m, subject, map[string][]byte{layer.Digest.String(): bundle}); err != nil {
		t.Fatal(err)
	}
	// Cosign lists the bundle under the fallback tag by its configuration's type.
	fallback := "http://" + w.host + "/v2/team/fn/manifests/" + strings.Replace(string(sent.Digest), ":", "-", 1)
	index, err := remoteReferrers(t.Context(), RegistryOptions{}, mustRepository(t, w.host+"/team/fn").Digest(string(sent.Digest)))
	if err != nil {
		t.Fatal(err)
	}
	for i := range index.Manifests {
		index.Manifests[i].ArtifactType = mediaEmpty
	}
	put, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fallback, bytes.NewReader(marshal(t, index)))
	if err != nil {
		t.Fatal(err)
	}
	put.Header.Set("Content-Type", string(types.OCIImageIndex))
	resp, err := http.DefaultClient.Do(put)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("put the fallback tag: %s, %v", resp.Status, err)
	}
	for _, any := range []bool{true, false} {
		x := openStore(t)
		p := signature.Policy{{Repository: "**", Accept: signature.AcceptSigned, Keys: []signature.PublicKey{public}, AnyIdentity: any}}
		if got, _, err := Pull(t.Context(), x, ref, PullOptions{Policy: p}); any != (err == nil) || any && got.Digest != img.Digest || !any && !errors.Is(err, ErrSignature) {
			t.Errorf("any identity: %v: %+v, %v", any, got, err)
		}
	}
}

func mustRepository(t testing.TB, s string) name.Repository {
	t.Helper()
	r, err := name.NewRepository(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSignedLies: A registry that fails on signatures, or changes them, gets no unsigned image
// through.
func TestSignedLies(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	release := s.Hold()
	defer release()
	img := builtImage(t, s, "fn", basePart(t, s))
	ref := w.host + "/team/fn:1"
	sent, err := Push(t.Context(), s, img, ref, PushOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, public := keyPair(t, "team.pub")
	payload := signature.Payload(w.host+"/team/fn", string(sent.Digest))
	if err := Attach(t.Context(), w.host+"/team/fn@"+string(sent.Digest), payload, signWith(t, key, payload), RegistryOptions{}); err != nil {
		t.Fatal(err)
	}
	p := signature.Policy{{Repository: "**", Accept: signature.AcceptSigned, Keys: []signature.PublicKey{public}}}
	for _, status := range []int{http.StatusInternalServerError, http.StatusForbidden, http.StatusNotFound} {
		wrap := func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, ".sig") {
					w.WriteHeader(status)
					return
				}
				h.ServeHTTP(w, r)
			})
		}
		w.wrap.Store(&wrap)
		x := openStore(t)
		if _, _, err := Pull(t.Context(), x, ref, PullOptions{RegistryOptions: RegistryOptions{pause: noPause}, Policy: p}); !errors.Is(err, ErrRegistry) && !errors.Is(err, ErrSignature) {
			t.Errorf("%d: error %v", status, err)
		}
		nothingKept(t, x)
	}
}

// TestSBOM: A push puts the bill of materials beside an image that FRE built, once, unless the push
// leaves it out.
func TestSBOM(t *testing.T) {
	w := watchRegistry(t, fretest.Registry(t))
	s := openStore(t)
	release := s.Hold()
	defer release()
	requests := part(t, s, "pip", "requests", "usr/lib/x", map[string]string{"a": "1"})
	requests.Hash = "sha256:" + strings.Repeat("0a", 32)
	img := builtImage(t, s, "fn", basePart(t, s), requests)
	want, err := sbom.CycloneDX(s, img, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(want), requests.Hash[len("sha256:"):]) {
		t.Errorf("without the hash of a package: %s", want)
	}
	for _, c := range []struct {
		name  string
		o     PushOptions
		times int
		want  int
	}{
		{"none", PushOptions{NoSBOM: true}, 1, 0},
		{"artifact", PushOptions{}, 2, 1},
		{"image", PushOptions{AsImage: true}, 2, 1},
	} {
		var sent Remote
		for range c.times {
			if sent, err = Push(t.Context(), s, img, w.host+"/"+c.name+":1", c.o); err != nil {
				t.Fatal(err)
			}
		}
		repo := mustRepository(t, w.host+"/"+c.name)
		index, err := remoteReferrers(t.Context(), RegistryOptions{}, repo.Digest(string(sent.Digest)))
		if err != nil || len(index.Manifests) != c.want {
			t.Fatalf("%s: referrers %+v, %v, want %d", c.name, index, err, c.want)
		}
		if c.want == 0 {
			continue
		}
		puller, err := remote.NewPuller((RegistryOptions{}).options(t.Context(), repo.Tag("1"))...)
		if err != nil {
			t.Fatal(err)
		}
		m, err := (RegistryOptions{}).small(t.Context(), puller, repo.Digest(index.Manifests[0].Digest.String()))
		if err != nil || m.ArtifactType != sbom.MediaType || len(m.Layers) != 1 || m.Subject == nil || m.Subject.Digest.String() != string(sent.Digest) {
			t.Fatalf("%s: %+v, %v", c.name, m, err)
		}
		got, err := (RegistryOptions{}).smallBlob(t.Context(), puller, repo, m.Layers[0])
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, want)
		}
	}
}
