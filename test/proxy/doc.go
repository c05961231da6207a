// SPDX-License-Identifier: Apache-2.0

// Package proxy tests the proxy through the real agent: services in namespaces on a bridge, virtual services applied as
// an operator does, and connections that are made, kept and broken while instances come, move and go. It needs root and
// `make bpf`. KERB_CHURN=60s makes the churn last as long as the published one, KERB_FIRST=1000 counts as many first
// packets.
package proxy
