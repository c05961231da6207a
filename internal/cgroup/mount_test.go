// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"strings"
	"testing"
)

func TestMount(t *testing.T) {
	const hybrid = `25 1 8:1 / / rw - ext4 /dev/sda1 rw
30 25 0:26 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/with\040space rw shared:10 master:2 - cgroup2 cgroup2 rw
`
	if got, err := mountIn(strings.NewReader(hybrid)); got != "/sys/fs/cgroup/with space" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for _, none := range []string{"", "30 25 0:26 / /cgroup2 rw - tmpfs cgroup2 rw\n"} {
		if got, err := mountIn(strings.NewReader(none)); !errors.Is(err, ErrNotMounted) {
			t.Errorf("%q, %v where there is none", got, err)
		}
	}
}
