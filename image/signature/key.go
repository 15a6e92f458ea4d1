package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"golang.org/x/crypto/nacl/secretbox"
	"golang.org/x/crypto/scrypt"
)

// ErrPassword: the password does not open the private key.
var ErrPassword = errors.New("wrong password")

// PublicKey is a key to verify with.
type PublicKey struct {
	Name string           // for people: the key's file
	Key  crypto.PublicKey // *ecdsa.PublicKey over P-256, or ed25519.PublicKey
}

// Kinds of keys.
const (
	KindECDSA   = "ecdsa" // P-256
	KindEd25519 = "ed25519"
)

// Types of PEM blocks.
const (
	pemPublic       = "PUBLIC KEY"
	pemPrivate      = "PRIVATE KEY"
	pemEncrypted    = "ENCRYPTED SIGSTORE PRIVATE KEY"
	pemEncryptedOld = "ENCRYPTED COSIGN PRIVATE KEY"
)

// Generate makes a key pair of the given kind, in PEM. The private key is encrypted with the
// password, which may be empty, in cosign's format (scrypt, then NaCl's secretbox).
func Generate(kind string, password []byte) (private, public []byte, err error) {
	var key crypto.Signer
	switch kind {
	case KindECDSA:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case KindEd25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("keys are %s or %s, not %q", KindECDSA, KindEd25519, kind)
	}
	if err != nil {
		return nil, nil, err
	}
	if public, err = MarshalPublic(key.Public()); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	sealed, err := seal(der, password)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemEncrypted, Bytes: sealed}), public, nil
}

// MarshalPublic encodes a public key in PEM.
func MarshalPublic(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der}), nil
}

// ParsePublic reads a public key in PEM. name is for people.
func ParsePublic(name string, b []byte) (PublicKey, error) {
	block, err := onlyBlock(b)
	if err != nil {
		return PublicKey{}, fmt.Errorf("key %s: %w", name, err)
	}
	if block.Type != pemPublic {
		return PublicKey{}, fmt.Errorf("key %s: is a %s, not a %s: use the file with the ending .pub", name, block.Type, pemPublic)
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err == nil {
		err = supported(key)
	}
	if err != nil {
		return PublicKey{}, fmt.Errorf("key %s: %w", name, err)
	}
	return PublicKey{name, key}, nil
}

// ParsePrivate reads a private key in PEM: in the format of Generate and cosign, or PKCS #8.
// Errors: ErrPassword.
func ParsePrivate(b, password []byte) (crypto.Signer, error) {
	block, err := onlyBlock(b)
	if err != nil {
		return nil, err
	}
	der := block.Bytes
	switch block.Type {
	case pemEncrypted, pemEncryptedOld:
		if der, err = open(block.Bytes, password); err != nil {
			return nil, err
		}
	case pemPrivate:
	default:
		return nil, fmt.Errorf("is a %s, not a private key of cosign or in PKCS #8", block.Type)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of the type %T cannot sign", parsed)
	}
	return key, supported(key.Public())
}

// Encrypted reports whether a private key needs a password.
func Encrypted(b []byte) bool {
	block, err := onlyBlock(b)
	return err == nil && (block.Type == pemEncrypted || block.Type == pemEncryptedOld)
}

func onlyBlock(b []byte) (*pem.Block, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("%d bytes are too long for a key", len(b))
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("not a key in PEM")
	}
	return block, nil
}

func supported(key crypto.PublicKey) error {
	switch key := key.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() {
			return nil
		}
		return fmt.Errorf("an ECDSA key over %s: use P-256", key.Curve.Params().Name)
	case ed25519.PublicKey:
		return nil
	}
	return fmt.Errorf("a key of the type %T: use ECDSA over P-256, or Ed25519", key)
}

// sealed is an encrypted private key in cosign's format
// (github.com/secure-systems-lab/go-securesystemslib, encrypted).
type sealed struct {
	KDF struct {
		Name   string `json:"name"`
		Params struct {
			N int `json:"N"`
			R int `json:"r"`
			P int `json:"p"`
		} `json:"params"`
		Salt []byte `json:"salt"`
	} `json:"kdf"`
	Cipher struct {
		Name  string `json:"name"`
		Nonce []byte `json:"nonce"`
	} `json:"cipher"`
	Ciphertext []byte `json:"ciphertext"`
}

// The format has only these parameters; maxN is above the N of every version.
const (
	kdfName    = "scrypt"
	cipherName = "nacl/secretbox"
	scryptN    = 65536
	maxN       = 1 << 18
)

func seal(plain, password []byte) ([]byte, error) {
	var s sealed
	s.KDF.Name, s.Cipher.Name = kdfName, cipherName
	s.KDF.Params.N, s.KDF.Params.R, s.KDF.Params.P = scryptN, 8, 1
	s.KDF.Salt, s.Cipher.Nonce = make([]byte, 32), make([]byte, 24)
	for _, b := range [][]byte{s.KDF.Salt, s.Cipher.Nonce} {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
	}
	key, err := s.key(password)
	if err != nil {
		return nil, err
	}
	s.Ciphertext = secretbox.Seal(nil, plain, (*[24]byte)(s.Cipher.Nonce), key)
	return json.Marshal(s)
}

func open(b, password []byte) ([]byte, error) {
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("an encrypted key: %w", err)
	}
	if s.KDF.Name != kdfName || s.Cipher.Name != cipherName || len(s.Cipher.Nonce) != 24 {
		return nil, fmt.Errorf("a key encrypted by %q and %q: known are %s and %s", s.KDF.Name, s.Cipher.Name, kdfName, cipherName)
	}
	key, err := s.key(password)
	if err != nil {
		return nil, err
	}
	plain, ok := secretbox.Open(nil, s.Ciphertext, (*[24]byte)(s.Cipher.Nonce), key)
	if !ok {
		return nil, ErrPassword
	}
	return plain, nil
}

func (s *sealed) key(password []byte) (*[32]byte, error) {
	p := s.KDF.Params
	if p.N > maxN || p.R > 16 || p.P > 4 || p.R < 1 || p.P < 1 {
		return nil, fmt.Errorf("an encrypted key with scrypt's parameters %d, %d, %d: too large", p.N, p.R, p.P)
	}
	key, err := scrypt.Key(password, s.KDF.Salt, p.N, p.R, p.P, 32)
	if err != nil {
		return nil, fmt.Errorf("an encrypted key: %w", err)
	}
	return (*[32]byte)(key), nil
}
