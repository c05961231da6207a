// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// ChangeRecord is an entry of the node's change history: a request that changed resources or was refused.
type ChangeRecord struct {
	Number   int64     `json:"number" doc:"Counts from 1. Numbers of records that were lost in a power failure are reused"`
	Time     time.Time `json:"time" doc:"When it was executed"`
	By       string    `json:"by" doc:"Process or certificate of the client"`
	Owner    string    `json:"owner" doc:"Owner of the changed resources"`
	Outcome  string    `json:"outcome" enum:"done,refused" doc:"All of it happened, or nothing"`
	Error    string    `json:"error,omitempty" doc:"Why it was refused"`
	Repeated int       `json:"repeated,omitempty" doc:"How often the same request was refused again directly afterwards"`
	Reverts  int64     `json:"reverts,omitempty" doc:"Number of the change that this one has reverted"`
	Took     int64     `json:"tookNanoseconds" doc:"From when it was its turn until it was in force and on disk"`

	Changes []Change `json:"changes" doc:"Changed resources; before and after only for a single record"`
	Steps   []string `json:"steps,omitempty" doc:"Steps performed in the kernel; only for a single record"`
}

// Outcomes of a change. A change is applied completely or not at all.
const (
	OutcomeDone    = "done"
	OutcomeRefused = "refused"
)

// ChangesRequest selects entries of the change history.
type ChangesRequest struct {
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most this many, the newest"`
	Kind  string `query:"kind" doc:"Only changes of resources of this kind"`
	Name  string `query:"name" doc:"Only changes of resources of this name"`
}

// RevertRequest asks for resources to be restored to their state before a change.
type RevertRequest struct {
	Number int64 `path:"id" minimum:"1" doc:"Number of the change"`
	Force  bool  `query:"force" doc:"Also resources that were changed since, and changes of other owners than user"`
	DryRun bool  `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
}
