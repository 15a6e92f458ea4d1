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

// chain encrypts by AES-128 in CBC mode. It is used for as long as the key is the same.
type chain struct {
	key      [16]byte
	iv       [block]byte
	opened   bool
	schedule [11 * block]byte // where there is hardware
	cipher   cipher.Block     // where there is none
}

// open makes it ready for a key and an initialisation vector.
func (c *chain) open(key, iv *[16]byte) {
	c.iv = *iv
	if c.opened && c.key == *key {
		return
	}
	c.opened, c.key = true, *key
	if hardware {
		expand(&c.schedule, key)
		return
	}
	var err error
	if c.cipher, err = aes.NewCipher(key[:]); err != nil {
		panic(err) // the key has the right size
	}
}

// crypt encrypts n blocks of src into dst, which is the same or another place, each stride
// bytes behind the one before. The first of them is chained to iv.
func (c *chain) crypt(dst, src []byte, iv *[block]byte, n, stride int) {
	if n <= 0 {
		return
	}
	used := (n-1)*stride + block
	dst, src = dst[:used], src[:used]
	if hardware {
		chainBlocks(&c.schedule, iv, &dst[0], &src[0], n, stride)
		return
	}
	last := iv[:]
	for i := range n {
		b := dst[i*stride : i*stride+block]
		subtle.XORBytes(b, src[i*stride:i*stride+block], last)
		c.cipher.Encrypt(b, b)
		last = b
	}
}

// all encrypts the whole blocks of b in place.
func (c *chain) all(b []byte) { c.crypt(b, b, &c.iv, len(b)/block, block) }

// tenth encrypts the first of each ten blocks of b in place, where more than behind bytes
// are left from it on.
func (c *chain) tenth(b []byte, behind int) {
	c.crypt(b, b, &c.iv, (len(b)-behind+pattern-1)/pattern, pattern)
}

// AES128Size is how many bytes AppendAES128 appends for so many.
func AES128Size(plain int64) int64 { return plain&^(block-1) + block }

// AppendAES128 appends what HLS calls AES-128: all of plain by CBC with the padding of
// PKCS #7 (RFC 8216 section 4.3.2.4). AppendAES128(b[:0], b, …) encrypts in place.
func AppendAES128(dst, plain []byte, key, iv *[16]byte) []byte {
	var c chain
	c.open(key, iv)
	whole := len(plain) &^ (block - 1)
	at := len(dst)
	dst = grow(dst, whole+block)
	last := dst[at+whole:]
	n := copy(last, plain[whole:])
	for i := n; i < block; i++ {
		last[i] = byte(block - n)
	}
	c.crypt(dst[at:], plain, iv, whole/block, block)
	if whole > 0 {
		c.iv = [block]byte(dst[at+whole-block:])
	}
	c.crypt(last, last, &c.iv, 1, block)
	return dst
}

// grow makes b longer by n bytes, whatever they are.
func grow(b []byte, n int) []byte {
	if n <= cap(b)-len(b) {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
