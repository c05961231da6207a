// SPDX-License-Identifier: Apache-2.0

// Package proxy tests the proxy with the real agent: services in namespaces on a bridge, virtual services applied like
// an operator, and connections that are made, kept and broken while instances are added, moved and removed. It needs
// root and `make bpf`. KERB_CHURN=60s sets the time of the churn to that of the published one, KERB_FIRST=1000 the
// number of first packets.
package proxy
