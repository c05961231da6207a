// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func TestVerifiedLines(t *testing.T) {
	const log = `func#0 @0
0: R1=ctx() R10=fp0
; if (x > 3) @ module.bpf.c:7
0: (79) r2 = *(u64 *)(r1 +0)          ; R2=scalar()
1: (25) if r2 > 0x3 goto pc+2 1: R2=scalar()
; return y; @ module.bpf.c:9
2: (b7) r0 = 0                        ; R0=0
mark_precise: frame0: regs=r2 stack= before 1: (25) if r2 > 0x3 goto pc+2

from 1 to 4: R2=scalar(umin=4)
; return y; @ module.bpf.c:9
4: (bf) r0 = r2
5: (95) exit
processed 5 insns (limit 1000000)
`
	want := []verifiedLine{{3, "return y; @ module.bpf.c:9"}, {2, "if (x > 3) @ module.bpf.c:7"}}
	if got := verifiedLines(log, 9); !slices.Equal(got, want) {
		t.Error(got)
	}
	if got := verifiedLines(log, 1); !slices.Equal(got, want[:1]) {
		t.Error(got)
	}
}

// TestVerifyLines has the kernel log the instructions of a package.
func TestVerifyLines(t *testing.T) {
	sdktest.NeedRoot(t)
	verdicts, err := verifyPackage(pkgstest.PackageIn(t, "../../modules/counter"), 1000)
	if err != nil || len(verdicts) != 4 {
		t.Fatal(verdicts, err)
	}
	for _, v := range verdicts {
		sum := 0
		for _, line := range v.Lines {
			sum += line.Verified
		}
		if sum == 0 || v.Verified > 0 && (sum > int(v.Verified) || sum < int(v.Verified)/2) {
			t.Errorf("%s: %d instructions on %d lines, %d verified", v.Program, sum, len(v.Lines), v.Verified)
		}
	}
}
