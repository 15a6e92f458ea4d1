package packager

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"math/rand/v2"
	"testing"
)

// TestChain: with and without the processor's AES instructions, encryption equals the standard
// library's, and writes no byte beside its output.
func TestChain(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 200 {
		var key, iv [16]byte
		var plain []byte
		for i := range key {
			key[i], iv[i] = byte(random.Uint32()), byte(random.Uint32())
		}
		for range n * 7 {
			plain = append(plain, byte(random.Uint32()))
		}
		std, err := aes.NewCipher(key[:])
		if err != nil {
			t.Fatal(err)
		}
		all, tenth := bytes.Clone(plain), bytes.Clone(plain)
		cipher.NewCBCEncrypter(std, iv[:]).CryptBlocks(all, plain[:len(plain)&^15])
		mode := cipher.NewCBCEncrypter(std, iv[:])
		for at := 0; len(plain)-at > 15; at += 160 {
			mode.CryptBlocks(tenth[at:at+16], plain[at:at+16])
		}
		for _, with := range []bool{hardware, false} {
			was := hardware
			hardware = with
			var c chain
			c.open(&key, &iv)
			a, b := bytes.Clone(plain), bytes.Clone(plain)
			c.all(a)
			c.tenth(b, 15)
			hardware = was
			if !bytes.Equal(a, all) || !bytes.Equal(b, tenth) {
				t.Fatalf("%d bytes, by the processor %v: other bytes", len(plain), with)
			}
		}
	}
}
