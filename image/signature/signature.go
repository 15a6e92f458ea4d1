// Package signature signs digests of images and verifies signatures, offline, with keys and without
// certificates or logs, in the formats of sigstore's cosign:
//
//   - [Payload] and its signature, which cosign keeps under the tag
//     sha256-<digest>.sig ("simple signing", cosign's specs/SIGNATURE_SPEC.md),
//   - bundles, which newer versions attach as a referrer (sigstore's
//     protobuf-specs, bundle v0.3, with an in-toto statement in a DSSE envelope;
//     [VerifyBundle]).
//
// Keys are ECDSA over P-256, cosign's own, or Ed25519. A [Policy] says which repositories need
// signatures, and by which keys.
package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/fre-engine/fre/failure"
)

// ErrSignature: no given signature is valid for the keys and the digest.
var ErrSignature = failure.New(failure.Forbidden, "signature", "let the image's author sign the image (fre image sign), or change registry.signatures in the engine's configuration")

// claimType is the type in cosign's payloads.
const claimType = "cosign container image signature"

// MaxBytes bounds a payload, a bundle and a key.
const MaxBytes = 64 << 10

// payload is cosign's payload: containers/image's "atomic container signature".
type payload struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// Payload returns the bytes to sign. They claim that the image with the digest ("sha256:…") belongs
// to the repository ("host:port/path").
func Payload(repository, digest string) []byte {
	var p payload
	p.Critical.Identity.Reference, p.Critical.Image.Digest, p.Critical.Type = repository, digest, claimType
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings only
	}
	return b
}

// Sign signs the bytes: DER for ECDSA, over their SHA-256; 64 bytes for Ed25519.
func Sign(key crypto.Signer, message []byte) ([]byte, error) {
	switch key.Public().(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return key.Sign(rand.Reader, sum[:], crypto.SHA256)
	case ed25519.PublicKey:
		return key.Sign(rand.Reader, message, crypto.Hash(0))
	}
	return nil, fmt.Errorf("%w: a key of the type %T: use ECDSA or Ed25519", ErrSignature, key.Public())
}

// verify reports whether sig is a signature of the message by the key, in the format of Sign or
// cosign.
func verify(key crypto.PublicKey, message, sig []byte) bool {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(key, sum[:], sig)
	case ed25519.PublicKey:
		if ed25519.Verify(key, message, sig) {
			return true
		}
		sum := sha512.Sum512(message) // RFC 8032, Ed25519ph: cosign's algorithm for Ed25519 keys
		return ed25519.VerifyWithOptions(key, sum[:], sig, &ed25519.Options{Hash: crypto.SHA512}) == nil
	}
	return false
}

// signedBy returns the first key that verifies the signature.
func signedBy(keys []PublicKey, message, sig []byte) (PublicKey, bool) {
	for _, k := range keys {
		if verify(k.Key, message, sig) {
			return k, true
		}
	}
	return PublicKey{}, false
}

// Verify checks a payload and its signature, in base64 as in cosign's annotation. A key must have
// signed the payload, and the payload must name the digest and the repository ("" for any). Verify
// returns the key. Errors: ErrSignature.
func Verify(keys []PublicKey, message []byte, sig, repository, digest string) (PublicKey, error) {
	raw, err := base64.StdEncoding.DecodeString(sig)
	if err != nil {
		return PublicKey{}, fmt.Errorf("%w: not base64", ErrSignature)
	}
	key, ok := signedBy(keys, message, raw)
	if !ok {
		return PublicKey{}, fmt.Errorf("%w: no configured key matches", ErrSignature)
	}
	var p payload
	if err := decode(message, &p); err != nil {
		return PublicKey{}, fmt.Errorf("%w: payload: %w", ErrSignature, err)
	}
	switch {
	case p.Critical.Type != claimType:
		return PublicKey{}, fmt.Errorf("%w: a signature of the type %q", ErrSignature, p.Critical.Type)
	case p.Critical.Image.Digest != digest:
		return PublicKey{}, fmt.Errorf("%w: signature of %q", ErrSignature, p.Critical.Image.Digest)
	case repository != "" && Repository(p.Critical.Identity.Reference) != repository:
		return PublicKey{}, fmt.Errorf("%w: signature for %q, not for %q: sign the image in the second repository, or accept any identity in the policy", ErrSignature, p.Critical.Identity.Reference, repository)
	}
	return key, nil
}

// Repository returns a reference without tag and digest, in the form of [Policy] and payloads:
// docker.io's repositories with their host.
func Repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	ref = strings.TrimPrefix(ref, "index.")
	switch first, _, more := strings.Cut(ref, "/"); {
	case ref == "":
		return ""
	case !more:
		return "docker.io/library/" + ref
	case !strings.ContainsAny(first, ".:") && first != "localhost":
		return "docker.io/" + ref
	}
	return ref
}

// bundle holds the fields of a sigstore bundle that VerifyBundle reads.
type bundle struct {
	MediaType string `json:"mediaType"`
	Envelope  struct {
		Payload     []byte `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	} `json:"dsseEnvelope"`
}

// statement holds the fields of an in-toto statement that VerifyBundle reads.
type statement struct {
	Type    string `json:"_type"`
	Subject []struct {
		Name   string            `json:"name"`
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
	PredicateType string `json:"predicateType"`
}

// Types in bundles.
const (
	BundleType    = "application/vnd.dev.sigstore.bundle.v0.3+json"
	statementType = "application/vnd.in-toto+json"
	predicateType = "https://sigstore.dev/cosign/sign/v1"
)

// VerifyBundle is like Verify for a bundle. A bundle names no repository. Errors: ErrSignature.
func VerifyBundle(keys []PublicKey, b []byte, digest string) (PublicKey, error) {
	var x bundle
	if err := decode(b, &x); err != nil {
		return PublicKey{}, fmt.Errorf("%w: bundle: %w", ErrSignature, err)
	}
	if x.Envelope.PayloadType != statementType || len(x.Envelope.Signatures) == 0 {
		return PublicKey{}, fmt.Errorf("%w: the bundle holds no signed statement", ErrSignature)
	}
	for _, s := range x.Envelope.Signatures {
		key, ok := signedBy(keys, preAuthentication(x.Envelope.PayloadType, x.Envelope.Payload), s.Sig)
		if !ok {
			continue
		}
		var st statement
		if err := decode(x.Envelope.Payload, &st); err != nil {
			return PublicKey{}, fmt.Errorf("%w: statement: %w", ErrSignature, err)
		}
		if st.PredicateType != predicateType {
			return PublicKey{}, fmt.Errorf("%w: statement of the type %q", ErrSignature, st.PredicateType)
		}
		for _, sub := range st.Subject {
			if "sha256:"+sub.Digest["sha256"] == digest {
				return key, nil
			}
		}
		return PublicKey{}, fmt.Errorf("%w: the statement is not of %s", ErrSignature, digest)
	}
	return PublicKey{}, fmt.Errorf("%w: no configured key matches", ErrSignature)
}

// preAuthentication returns the bytes that a DSSE envelope's signatures cover (DSSE protocol.md).
func preAuthentication(kind string, payload []byte) []byte {
	return fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(payload), payload)
}

// decode decodes one JSON value and nothing after it. An object with two members whose names
// are equal but for case is refused: two readers could take different ones.
func decode(b []byte, v any) error {
	if len(b) > MaxBytes {
		return fmt.Errorf("%d bytes: over the limit of %d", len(b), MaxBytes)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the JSON value")
	}
	return unambiguous(json.NewDecoder(bytes.NewReader(b)))
}

// unambiguous reads one JSON value and refuses an object that has a name twice, in any case.
func unambiguous(d *json.Decoder) error {
	open, err := d.Token()
	if err != nil {
		return err
	}
	if open != json.Delim('{') && open != json.Delim('[') {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if open == json.Delim('{') {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string) // the decoder admits no other token here
			folded := strings.Map(fold, name)
			if seen[folded] {
				return fmt.Errorf("two members %q", name)
			}
			seen[folded] = true
		}
		if err := unambiguous(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// fold returns the smallest rune that equals r but for case, as encoding/json compares names.
func fold(r rune) rune {
	for next := unicode.SimpleFold(r); ; r, next = next, unicode.SimpleFold(next) {
		if next <= r {
			return next
		}
	}
}
