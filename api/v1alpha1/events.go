// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// Event types that are not derived from a condition.
const (
	EventAgent        = "Agent"        // Started, Stopped
	EventChange       = "Change"       // Refused, RolledBack, RollbackFailed
	EventControlPlane = "ControlPlane" // Started, Exited
)

// EventsRequest selects events.
type EventsRequest struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"100" doc:"At most this many, the newest"`
	Kind   string `query:"kind" doc:"Only those of this kind of resource, or of the Agent"`
	Name   string `query:"name" doc:"Only those of resources of this name"`
	Follow bool   `query:"follow" doc:"Continues with new events until the client closes the request"`
}

// Event is an event on the node, the number of missing events, or an error that ends the list. Repetitions within 10
// minutes are merged into one event, with their number and the time of the last.
type Event struct {
	Number  int64     `json:"number,omitempty" doc:"Rises with each event; a repeated one gets a new number"`
	Time    time.Time `json:"time,omitzero" doc:"When it happened last"`
	First   time.Time `json:"first,omitzero" doc:"When it happened first"`
	Count   int       `json:"count,omitempty" doc:"How often it happened"`
	Kind    string    `json:"kind,omitempty" doc:"Kind of the resource, or Agent"`
	Name    string    `json:"name,omitempty" doc:"Of the resource"`
	Type    string    `json:"type,omitempty" doc:"Type of the condition that changed; or Agent, Change, ControlPlane"`
	Reason  string    `json:"reason,omitempty" doc:"In CamelCase: of a condition its reason"`
	Message string    `json:"message,omitempty"`

	Lost int `json:"lost,omitempty" doc:"Instead of an event: the number of events that were dropped because the client read too slowly"`

	Error string `json:"error,omitempty"`
}
