// SPDX-License-Identifier: Apache-2.0

package classifier

// Features has the names of an extractor's features, in the order in which the data plane fills them: enum
// cls_rpl_feature and enum cls_flow_feature. Counts are of the window.
var Features = map[string][]string{
	"rpl": {
		"dis", "dio", "dao", "daoAck", "control", "other", // messages by kind
		"messages",          // all of them
		"repeats",           // frames that repeat a message
		"bytes",             // of messages
		"multicast",         // RPL messages to the link's broadcast address
		"versions", "ranks", // DIOs with another DODAG version, with a lower rank than the one before
		"secured", "fragments", // frames that cannot be read, later fragments
		"disShare", "dioShare", "daoShare", // in 1/1000 of messages
		"disBefore", "dioBefore", "daoBefore", // in the last whole window before
		"gapMin", "gapMax", "gapMean", // ms between messages
		"rankMin", "rankMax", // announced by DIOs
	},
	"flow": {
		"packetsForward", "packetsBackward", "bytesForward", "bytesBackward", // forward is from the side that opened the flow
		"lengthMin", "lengthMax", "lengthMean", "lengthDeviation", // of IP datagrams
		"gapMin", "gapMax", "gapMean", "gapDeviation", // us between packets, either direction
		"fin", "syn", "rst", "psh", "ack", "urg", // packets with the flag
		"fragments", "payloads", // packets that are later fragments, that have a payload
		"duration",         // ms since the first packet of the flow
		"protocol", "port", // IANA number; port that the flow was opened to
		"lengthForwardMean", "lengthBackwardMean",
		"packets", "backwardShare", // both directions; packets backward in 1/1000 of them
	},
}
