// SPDX-License-Identifier: Apache-2.0

package api

// Reasons in reports of nodes about modules. kerb-kube-controller writes Events only with these, since a compromised
// node may report any text.
const (
	RolledBack  = "RolledBack"  // the node has gone back from the new version of a rollout
	CheckFailed = "CheckFailed" // the node could not run it, and has not begun

	PackageUnavailable = "PackageUnavailable" // the node has not got the package yet
	PackageRefused     = "PackageRefused"     // it does not exist, or the node rejects it
	TooManyPackages    = "TooManyPackages"
	TrustUnknown       = "TrustUnknown" // the cluster may not permit the package
	NotPermitted       = "NotPermitted"
	NotPulled          = "NotPulled"
	NotAllowed         = "NotAllowed"

	Undecodable = "Undecodable" // the object
	TooLarge    = "TooLarge"
	Invalid     = "Invalid"
	TooMany     = "TooMany" // Modules of the namespace
	NoRoom      = "NoRoom"  // for a Module of a namespace, in the memory of kerb-kube-node

	Refused    = "Refused"    // by the agent
	AgentError = "AgentError" // of the agent, which may accept it later

	// Of the condition Ready of the agent's modules.
	Starting      = "Starting"
	ModuleFailed  = "ModuleFailed"
	NotReconciled = "NotReconciled"

	OwnCgroupsOnly = "OwnCgroupsOnly" // of their condition Placed
)

// NodeReasons lists all of them.
var NodeReasons = []string{RolledBack, CheckFailed, PackageUnavailable, PackageRefused, TooManyPackages, TrustUnknown,
	NotPermitted, NotPulled, NotAllowed, Undecodable, TooLarge, Invalid, TooMany, NoRoom, Refused, AgentError, Starting,
	ModuleFailed, NotReconciled, OwnCgroupsOnly}

// OfNew reports whether a reason refers to a new version. Other reasons may refer to the previous one.
func OfNew(reason string) bool { return reason == RolledBack || reason == CheckFailed }
