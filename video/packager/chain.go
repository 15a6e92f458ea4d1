package packager

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
)

// The bytes of a block, and how many of them there are from one that is encrypted to the next
// where one in ten is.
const (
	block   = aes.BlockSize
	pattern = 10 * block
)

// chain encrypts by AES-128 in CBC mode. It is kept for as long as the key is the same.
type chain struct {
	mode cipher.BlockMode
	key  [16]byte
	iv   [block]byte
	last [block]byte // what the mode has made last, or its own initialisation vector
	// blocks of a pattern, one behind the other
	gathered [256 * block]byte
}

// open makes it ready for a key and an initialisation vector.
func (c *chain) open(key, iv *[16]byte) error {
	c.iv = *iv
	if c.mode != nil && c.key == *key {
		return nil
	}
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return err
	}
	c.key, c.last = *key, [block]byte{}
	c.mode = cipher.NewCBCEncrypter(b, c.last[:])
	return nil
}

// restart makes the block that comes next the first one behind the initialisation vector:
// what the mode will chain it to is taken out of it before.
func (c *chain) restart(next []byte) {
	subtle.XORBytes(next[:block], next[:block], c.last[:])
	subtle.XORBytes(next[:block], next[:block], c.iv[:])
}

// crypt encrypts whole blocks in place.
func (c *chain) crypt(b []byte) {
	c.mode.CryptBlocks(b, b)
	copy(c.last[:], b[len(b)-block:])
}

// all encrypts the whole blocks of b in place.
func (c *chain) all(b []byte) {
	if b = b[:len(b)&^(block-1)]; len(b) > 0 {
		c.restart(b)
		c.crypt(b)
	}
}

// tenth encrypts the first of each ten blocks of b in place, where more than behind bytes
// are left from it on.
func (c *chain) tenth(b []byte, behind int) {
	n := (len(b) - behind + pattern - 1) / pattern
	for first := true; n > 0; first = false {
		some := min(n, len(c.gathered)/block)
		for i := range some {
			*(*[block]byte)(c.gathered[i*block:]) = *(*[block]byte)(b[i*pattern:])
		}
		if first {
			c.restart(c.gathered[:])
		}
		c.crypt(c.gathered[:some*block])
		for i := range some {
			*(*[block]byte)(b[i*pattern:]) = *(*[block]byte)(c.gathered[i*block:])
		}
		if n -= some; n > 0 {
			b = b[some*pattern:]
		}
	}
}

// AES128Size is how many bytes AppendAES128 appends for so many.
func AES128Size(plain int64) int64 { return plain&^(block-1) + block }

// AppendAES128 appends what HLS calls AES-128: all of plain by CBC with the padding of
// PKCS #7 (RFC 8216 section 4.3.2.4). AppendAES128(b[:0], b, …) encrypts in place.
func AppendAES128(dst, plain []byte, key, iv *[16]byte) []byte {
	b, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right size
	}
	mode := cipher.NewCBCEncrypter(b, iv[:])
	whole := len(plain) &^ (block - 1)
	at := len(dst)
	dst = grow(dst, whole+block)
	last := dst[at+whole:]
	n := copy(last, plain[whole:])
	for i := n; i < block; i++ {
		last[i] = byte(block - n)
	}
	mode.CryptBlocks(dst[at:at+whole], plain[:whole])
	mode.CryptBlocks(last, last)
	return dst
}

// grow makes b longer by n bytes, whatever they are.
func grow(b []byte, n int) []byte {
	if n <= cap(b)-len(b) {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
