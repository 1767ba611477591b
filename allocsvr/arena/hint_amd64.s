#include "textflag.h"

// func fetchLine(p *atomic.Uint64)
TEXT ·fetchLine(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET
