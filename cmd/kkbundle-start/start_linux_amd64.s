#include "textflag.h"

// func entry()
// Go's calls between assembly and Go read their goroutine from thread-local storage: it needs an address.
TEXT ·entry(SB),NOSPLIT|NOFRAME,$0
	MOVQ	SP, BX
	MOVQ	$158, AX // arch_prctl
	MOVQ	$0x1002, DI // ARCH_SET_FS
	LEAQ	·buffer+64(SB), SI
	SYSCALL
	ANDQ	$~15, SP
	SUBQ	$16, SP
	MOVQ	BX, 0(SP)
	CALL	·run(SB)
	INT	$3

// func call(number, a, b, c, d uintptr) uintptr
TEXT ·call(SB),NOSPLIT,$0-48
	MOVQ	number+0(FP), AX
	MOVQ	a+8(FP), DI
	MOVQ	b+16(FP), SI
	MOVQ	c+24(FP), DX
	MOVQ	d+32(FP), R10
	SYSCALL
	MOVQ	AX, ret+40(FP)
	RET
