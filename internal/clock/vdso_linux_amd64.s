#include "textflag.h"

// func vdsoRead(fn uintptr, clock int64) (sec, nsec int64, failed int32)
//
// The vDSO is C: it wants an aligned stack, and as much of it as it pleases. A
// kernel built to probe its stack touches 4 KiB below (golang.org/issue/20427).
// This function is not NOSPLIT, so its prologue has made sure of a frame that
// large; the callee gets the frame to itself, above the hardware stack pointer.
TEXT ·vdsoRead(SB), 0, $5120-36
	MOVQ fn+0(FP), AX
	MOVQ clock+8(FP), DI
	MOVQ SP, R12               // R12 and R13 are the callee's to preserve
	LEAQ 5072(SP), R13
	ANDQ $~15, R13
	MOVQ R13, SP
	MOVQ R13, SI               // struct timespec, 16 bytes of the 48 above
	CALL AX
	MOVQ 0(R13), CX
	MOVQ 8(R13), DX
	MOVQ R12, SP
	MOVQ CX, sec+16(FP)
	MOVQ DX, nsec+24(FP)
	MOVL AX, failed+32(FP)
	RET
