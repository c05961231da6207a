// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"hash/fnv"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// FlowRecords is the answer to GET flows of a module whose manifest has `recordsFlows: true`. The parameters are those
// of v1alpha1.FlowsRequest except follow, and after, which selects flows with packets since then: the value of Now in
// an earlier answer.
type FlowRecords struct {
	Now     uint64                  `json:"now"` // ns, CLOCK_MONOTONIC
	Flows   []FlowRecord            `json:"flows"`
	Missing []v1alpha1.MissingFlows `json:"missing,omitempty"`
}

// FlowRecord is a flow as the module recorded it. The agent adds names that the module does not know.
type FlowRecord struct {
	v1alpha1.Flow
	// Drop is the last drop; nil if there was none.
	Drop *FlowDrop `json:"drop,omitempty"`
}

// FlowDrop identifies a drop by module and reason number.
type FlowDrop struct {
	Module uint32 `json:"module"` // of the module that dropped: ModuleNumber of its name
	Reason uint8  `json:"reason"` // enum kerb_drop_reason, or the module's own
}

// ModuleNumber returns the number that identifies a module in data planes, as KERB_EXIT passes it: the FNV-1a hash of
// its name, never 0. It does not depend on the module's chains.
func ModuleNumber(name string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return max(1, h.Sum32())
}
