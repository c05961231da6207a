// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/modules"
)

func TestCheckBuiltNamesWhatIsMissing(t *testing.T) {
	if err := checkBuilt(bpf.FS, modules.Packages()); err != nil {
		t.Fatal(err)
	}
	chain := fstest.MapFS{"chain.tc.o": {}, "chain.xdp.o": {}}
	packages := fstest.MapFS{"a/kerb.yaml": {}, "a/a.tc.o": {}, "b/kerb.yaml": {}, "b/b.bpf.c": {}, "gen/main.go": {}}
	err := checkBuilt(chain, packages)
	if err == nil || !strings.Contains(err.Error(), "(bpf/chain.xdp-frags.o, modules/b): run `make build`") {
		t.Fatal(err)
	}
}
