// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"hash/fnv"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// FlowRecords is the answer to GET flows of a module whose manifest has `recordsFlows: true`.
// Its parameters are those of v1alpha1.FlowsRequest but for follow, and after, which selects flows with packets since
// then: Now of an earlier answer.
type FlowRecords struct {
	Now     uint64                  `json:"now"` // ns, CLOCK_MONOTONIC
	Flows   []FlowRecord            `json:"flows"`
	Missing []v1alpha1.MissingFlows `json:"missing,omitempty"`
}

// FlowRecord is a flow as the module knows it. The agent fills in names that modules do not know.
type FlowRecord struct {
	v1alpha1.Flow
	// Drop is the last drop; nil if there was none.
	Drop *FlowDrop `json:"drop,omitempty"`
}

// FlowDrop is a drop by its numbers.
type FlowDrop struct {
	Module uint32 `json:"module"` // of the module that dropped: ModuleNumber of its name
	Reason uint8  `json:"reason"` // enum kerb_drop_reason, or the module's own
}

// ModuleNumber returns the number by which data planes know a module, as KERB_EXIT passes it: the FNV-1a hash of its
// name, and never 0. It does not depend on the chains that the module is in.
func ModuleNumber(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return max(1, h.Sum32())
}
