// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLandlockReasons(t *testing.T) {
	for version, want := range map[int]int{0: 1, 1: 1, 2: 1, 3: 1, 5: 1, 6: 0, 7: 0} {
		if got := landlockReasons(version, nil); len(got) != want {
			t.Errorf("version %d: %q", version, got)
		}
	}
	for err, want := range map[error]string{unix.ENOSYS: "Linux 5.13", unix.EOPNOTSUPP: "lsm=",
		unix.EPERM: "SystemCallFilter="} {
		if got := landlockReasons(0, err); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("%v: %q, which does not name %s", err, got, want)
		}
	}
}

func TestNeedsBPF(t *testing.T) {
	for _, c := range []struct {
		version  uint32
		disabled string
		want     bool
	}{
		{5<<16 | 10<<8, "2\n", true},
		{5<<16 | 18<<8 | 19, "1\n", true},
		{5<<16 | 19<<8, "2\n", false},
		{6<<16 | 1<<8, "2\n", false},
		{5<<16 | 10<<8, "0\n", false},
	} {
		if got := needsBPF(c.version, c.disabled); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
