// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/sdk"
)

// An unknown module has no name, and its own drop reasons are shown as numbers.
func TestUnknownDropper(t *testing.T) {
	n := flowNames{droppers: map[uint32]status.Dropper{}}
	f := n.complete(&sdk.FlowRecord{Drop: &sdk.FlowDrop{Module: 7, Reason: 33}})
	if f.DropModule != "" || f.DropReason != "module_1" {
		t.Errorf("%+v", f)
	}
}
