// SPDX-License-Identifier: Apache-2.0

// Package probe finds out what the running kernel can do by doing it: it loads
// tiny programs, creates tiny maps and attaches to a veth in a network
// namespace made for the purpose, and takes everything away again. It also
// looks, without touching anything, at what runs on the node's interfaces.
package probe

import (
	"errors"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// objectName is the name of all programs and maps made here.
const objectName = "kerbprobe"

// Feature is something that a kernel may be able to do.
type Feature struct {
	Name string
	try  func() error
}

// Try does it once. The error says what the kernel answered.
func (f Feature) Try() error { return f.try() }

// Features in the order in which they are worth reading.
func Features() []Feature {
	return []Feature{
		{"bpf-syscall", tryArray},
		{"xdp-program", func() error { return load(pass(ebpf.XDP)) }},
		{"tc-program", func() error { return load(pass(ebpf.SchedCLS)) }},
		{"mcpu-v3", features.HaveV3ISA},
		{"mcpu-v4", features.HaveV4ISA},
		{"large-programs", features.HaveLargeInstructions},
		{"test-run-xdp", func() error { return testRun(ebpf.XDP) }},
		{"test-run-tc", func() error { return testRun(ebpf.SchedCLS) }},
		{"ringbuf", func() error { return createMap(ringbuf(ebpf.RingBuf)) }},
		{"user-ringbuf", func() error { return createMap(ringbuf(ebpf.UserRingbuf)) }},
		{"lru-hash", func() error { return createMap(hash(ebpf.LRUHash, 0)) }},
		{"lpm-trie", func() error { return createMap(hash(ebpf.LPMTrie, unix.BPF_F_NO_PREALLOC)) }},
		{"map-in-map", tryMapInMap},
		{"batch-ops", tryBatch},
		{"bpf-loop", tryLoop},
		{"bpf-timer", tryTimer},
		{"xdp-load-bytes", tryLoadBytes},
		{"redirect-peer", tryRedirectPeer},
		{"fentry", tryFentry},
		{"freplace", tryFreplace},
		{"tcx", tryTCX},
		{"clsact", tryClsact},
		{"xdp-native", func() error { return tryXDP(native) }},
		{"xdp-frags", func() error { return tryXDP(frags) }},
		{"xdp-generic", func() error { return tryXDP(generic) }},
	}
}

// Reason puts a failure in a few words: the verifier's complaint or the
// kernel's error, without the way that led there.
func Reason(err error) string {
	var rejected *ebpf.VerifierError
	var errno unix.Errno
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return "not supported by this kernel"
	case errors.As(err, &rejected) && len(rejected.Log) > 0:
		return "refused by the verifier: " + complaint(rejected.Log)
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// complaint is the last line of a log that is not a statistic.
func complaint(log []string) string {
	last := ""
	for _, line := range log {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "processed ") && !strings.HasPrefix(line, "verification time") {
			last = line
		}
	}
	return last
}
