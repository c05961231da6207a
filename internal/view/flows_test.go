// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/sdk"
)

// A module that nothing is known of has no name, and of its own reasons the number.
func TestUnknownDropper(t *testing.T) {
	n := flowNames{droppers: map[uint32]status.Dropper{}}
	f := n.complete(&sdk.FlowRecord{Drop: &sdk.FlowDrop{Module: 7, Reason: 33}})
	if f.DropModule != "" || f.DropReason != "module_1" {
		t.Errorf("%+v", f)
	}
}
