package packager

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
)

// block is the size of a block in bytes, pattern the distance between encrypted blocks when one
// in ten is encrypted.
const (
	block   = aes.BlockSize
	pattern = 10 * block
)

// chain encrypts by AES-128 in CBC mode. It keeps the expanded key between uses.
type chain struct {
	key      [16]byte
	iv       [block]byte
	opened   bool
	schedule [11 * block]byte // with hardware support
	cipher   cipher.Block     // without
}

// open sets the key and the initialisation vector.
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

// crypt encrypts n blocks of src, at a distance of stride bytes, into dst. dst may be src. The
// first block is chained to iv.
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

// tenth encrypts every tenth block of b in place, from the first on, as long as more than behind
// bytes remain from the block on.
func (c *chain) tenth(b []byte, behind int) {
	c.crypt(b, b, &c.iv, (len(b)-behind+pattern-1)/pattern, pattern)
}

// AES128Size returns the number of bytes appended by AppendAES128 for plain bytes.
func AES128Size(plain int64) int64 { return plain&^(block-1) + block }

// AppendAES128 appends plain encrypted by HLS's method AES-128: CBC over all of plain with the
// padding of PKCS #7 (RFC 8216 section 4.3.2.4). AppendAES128(b[:0], b, …) encrypts in place.
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

// grow extends b by n bytes of any value.
func grow(b []byte, n int) []byte {
	if n <= cap(b)-len(b) {
		return b[:len(b)+n]
	}
	return append(b, make([]byte, n)...)
}
