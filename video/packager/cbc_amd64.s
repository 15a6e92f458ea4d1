#include "textflag.h"

// The words of a round's key out of the one before, in X1, and what AESKEYGENASSIST has made
// of that, in X2 (FIPS 197 section 5.2).
#define EXPAND(rcon, at) \
	AESKEYGENASSIST $rcon, X1, X2 \
	PSHUFD $0xff, X2, X2 \
	MOVO   X1, X3        \
	PSLLDQ $4, X3        \
	PXOR   X3, X1        \
	PSLLDQ $4, X3        \
	PXOR   X3, X1        \
	PSLLDQ $4, X3        \
	PXOR   X3, X1        \
	PXOR   X2, X1        \
	MOVUPS X1, at(AX)

// func expand(schedule *[176]byte, key *[16]byte)
TEXT ·expand(SB), NOSPLIT, $0-16
	MOVQ   schedule+0(FP), AX
	MOVQ   key+8(FP), BX
	MOVUPS (BX), X1
	MOVUPS X1, (AX)
	EXPAND(0x01, 16)
	EXPAND(0x02, 32)
	EXPAND(0x04, 48)
	EXPAND(0x08, 64)
	EXPAND(0x10, 80)
	EXPAND(0x20, 96)
	EXPAND(0x40, 112)
	EXPAND(0x80, 128)
	EXPAND(0x1b, 144)
	EXPAND(0x36, 160)
	RET

// func chainBlocks(schedule *[176]byte, iv *[16]byte, dst, src *byte, n, stride int)
TEXT ·chainBlocks(SB), NOSPLIT, $0-48
	MOVQ   schedule+0(FP), AX
	MOVQ   iv+8(FP), BX
	MOVQ   dst+16(FP), DI
	MOVQ   src+24(FP), SI
	MOVQ   n+32(FP), CX
	MOVQ   stride+40(FP), DX
	MOVUPS (BX), X0
	MOVUPS (AX), X1
	MOVUPS 16(AX), X2
	MOVUPS 32(AX), X3
	MOVUPS 48(AX), X4
	MOVUPS 64(AX), X5
	MOVUPS 80(AX), X6
	MOVUPS 96(AX), X7
	MOVUPS 112(AX), X8
	MOVUPS 128(AX), X9
	MOVUPS 144(AX), X10
	MOVUPS 160(AX), X11
	TESTQ  CX, CX
	JLE    end

next:
	MOVUPS     (SI), X12
	PXOR       X1, X12
	PXOR       X12, X0
	AESENC     X2, X0
	AESENC     X3, X0
	AESENC     X4, X0
	AESENC     X5, X0
	AESENC     X6, X0
	AESENC     X7, X0
	AESENC     X8, X0
	AESENC     X9, X0
	AESENC     X10, X0
	AESENCLAST X11, X0
	MOVUPS     X0, (DI)
	ADDQ       DX, SI
	ADDQ       DX, DI
	DECQ       CX
	JNZ        next

end:
	RET
