#include "textflag.h"

// func entry()
TEXT ·entry(SB),NOSPLIT|NOFRAME,$0
	MOVD	RSP, R0
	SUB	$32, RSP
	MOVD	R0, 8(RSP)
	CALL	·run(SB)
	BRK

// func call(number, a, b, c, d uintptr) uintptr
TEXT ·call(SB),NOSPLIT,$0-48
	MOVD	number+0(FP), R8
	MOVD	a+8(FP), R0
	MOVD	b+16(FP), R1
	MOVD	c+24(FP), R2
	MOVD	d+32(FP), R3
	SVC
	MOVD	R0, ret+40(FP)
	RET
