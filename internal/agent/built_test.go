// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kerb-edge/kerb/bpf"
)

func TestCheckBuiltNamesWhatIsMissing(t *testing.T) {
	if err := checkBuilt(bpf.Objects()); err != nil {
		t.Fatal(err)
	}
	err := checkBuilt(fstest.MapFS{"bpf/chain.tc.o": {}, "bpf/chain.xdp.o": {}, "modules/a/kerb.yaml": {},
		"modules/a/a.tc.o": {}, "modules/b/kerb.yaml": {}, "modules/b/b.bpf.c": {}, "modules/gen/main.go": {}})
	if err == nil || !strings.Contains(err.Error(), "(bpf/chain.xdp-frags.o, modules/b): run `make build`") {
		t.Fatal(err)
	}
}
