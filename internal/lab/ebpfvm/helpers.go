// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"bytes"
	"encoding/binary"
	"os"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

const loopbackMTU = 65536

// helper calls a BPF helper by its number.
func (v *VM) helper(at *int, fn asm.BuiltinFunc, a [5]uint64) uint64 {
	v.result.Helpers[fn.String()]++
	if f := helpers[fn]; f != nil {
		return f(v, a)
	}
	switch fn {
	case asm.FnLoop:
		return v.loop(at, a)
	case asm.FnMapLookupElem:
		return v.lookup(a)
	case asm.FnMapUpdateElem:
		return v.update(a)
	case asm.FnMapDeleteElem:
		return v.remove(a)
	}
	fail("helper %s is not known here", fn)
	return 0
}

type function = func(v *VM, a [5]uint64) uint64

// helpers are those that need only their arguments. Locks and timers are no-ops.
var helpers = map[asm.BuiltinFunc]function{
	asm.FnSpinLock:          nothing,
	asm.FnSpinUnlock:        nothing,
	asm.FnTimerInit:         nothing,
	asm.FnTimerSetCallback:  nothing,
	asm.FnTimerStart:        nothing,
	asm.FnUserRingbufDrain:  nothing, // the ring has no messages
	asm.FnRingbufQuery:      nothing, // the ring has no records
	asm.FnKtimeGetNs:        func(v *VM, _ [5]uint64) uint64 { return v.in.Clock.Now },
	asm.FnKtimeGetCoarseNs:  func(v *VM, _ [5]uint64) uint64 { return v.in.Clock.Coarse },
	asm.FnJiffies64:         func(v *VM, _ [5]uint64) uint64 { return v.in.Clock.Jiffies },
	asm.FnGetSmpProcessorId: func(v *VM, _ [5]uint64) uint64 { return uint64(v.in.CPU) },
	// the table is empty, like that of a chain without a timed copy: the call fails, and the program continues
	asm.FnTailCall:             func(*VM, [5]uint64) uint64 { return errno(unix.ENOENT) },
	asm.FnGetPrandomU32:        func(v *VM, _ [5]uint64) uint64 { return uint64(v.in.Random) },
	asm.FnGetCurrentPidTgid:    processID,
	asm.FnMapPushElem:          (*VM).push,
	asm.FnMapPopElem:           (*VM).pop,
	asm.FnMapPeekElem:          (*VM).peek,
	asm.FnRedirect:             (*VM).redirect,
	asm.FnRedirectPeer:         (*VM).redirect,
	asm.FnRedirectNeigh:        (*VM).redirect,
	asm.FnRedirectMap:          func(_ *VM, a [5]uint64) uint64 { return a[2] & 3 }, // the maps are empty
	asm.FnCheckMtu:             (*VM).checkMTU,
	asm.FnSkbLoadBytes:         (*VM).loadBytes,
	asm.FnXdpLoadBytes:         (*VM).loadBytes,
	asm.FnSkbLoadBytesRelative: (*VM).loadRelative,
	asm.FnSkbStoreBytes:        (*VM).storeBytes,
	asm.FnXdpStoreBytes:        (*VM).storeBytes,
	asm.FnSkbPullData:          (*VM).pullData,
	asm.FnSkbAdjustRoom:        (*VM).adjustRoom,
	asm.FnSkbChangeTail:        (*VM).changeTail,
	asm.FnSkbChangeHead:        (*VM).changeHead,
	asm.FnSkbChangeType:        (*VM).changeType,
	asm.FnXdpGetBuffLen:        func(v *VM, _ [5]uint64) uint64 { return uint64(v.length()) },
	asm.FnXdpAdjustHead:        (*VM).adjustHead,
	asm.FnXdpAdjustTail:        (*VM).adjustTail,
	asm.FnXdpAdjustMeta:        (*VM).adjustMeta,
	asm.FnCsumDiff:             (*VM).csumDiff,
	asm.FnCsumUpdate:           func(*VM, [5]uint64) uint64 { return errno(notSupported) }, // not CHECKSUM_COMPLETE
	asm.FnCsumLevel:            csumLevel,
	asm.FnL4CsumReplace:        (*VM).l4CsumReplace,
	asm.FnRingbufOutput:        (*VM).ringbufOutput,
	asm.FnRingbufReserve:       (*VM).ringbufReserve,
	asm.FnRingbufSubmit:        func(v *VM, _ [5]uint64) uint64 { v.result.Records++; return 0 },
	asm.FnRingbufDiscard:       nothing,
	asm.FnSkbSetTunnelKey:      nothing,
	asm.FnSkbGetTunnelKey:      (*VM).noTunnelKey,
}

func nothing(*VM, [5]uint64) uint64 { return 0 }

func processID(*VM, [5]uint64) uint64 {
	return uint64(os.Getpid())<<32 | uint64(unix.Gettid())
}

// kfunc calls a kernel function by its name.
func (v *VM) kfunc(name string, a [5]uint64) uint64 {
	switch name {
	case "bpf_cast_to_kern_ctx": // a move in the kernel
		return v.kernel.address
	case "bpf_xdp_pull_data":
		v.result.Helpers[name]++
		if int(uint32(a[1])) > v.length() {
			return errno(unix.EINVAL)
		}
		return 0
	}
	fail("function %s of the kernel is not known here", name)
	return 0
}

// loop is bpf_loop.
func (v *VM) loop(at *int, a [5]uint64) uint64 {
	for i := range uint64(uint32(a[0])) {
		if v.call(at, int(a[1]), [5]uint64{i, a[2]}) != 0 {
			return i + 1
		}
	}
	return uint64(uint32(a[0]))
}

func (v *VM) redirect([5]uint64) uint64 {
	const xdpRedirect, tcRedirect = 4, 7
	if v.p.xdp {
		return xdpRedirect
	}
	return tcRedirect
}

// checkMTU is bpf_check_mtu for the loopback interface.
func (v *VM) checkMTU(a [5]uint64) uint64 {
	const tooLong = 1 // BPF_MTU_CHK_RET_FRAG_NEEDED
	size := v.memory(a[2], 4)
	length := v.length()
	if given := int(binary.NativeEndian.Uint32(size)); given != 0 {
		length = given + ethernet
	}
	binary.NativeEndian.PutUint32(size, loopbackMTU)
	if length+int(int32(a[3])) > loopbackMTU+ethernet {
		return tooLong
	}
	return 0
}

func (v *VM) changeType(a [5]uint64) uint64 {
	v.put(skbType, uint32(a[1]))
	return 0
}

func (v *VM) ringbufOutput(a [5]uint64) uint64 {
	v.memory(a[1], int(a[2]))
	v.result.Records++
	return 0
}

func (v *VM) ringbufReserve(a [5]uint64) uint64 {
	return v.newRegion("a record of "+v.tableAt(a[0]).name, make([]byte, a[1])).address
}

// noTunnelKey is bpf_skb_get_tunnel_key for a packet without tunnel metadata.
func (v *VM) noTunnelKey(a [5]uint64) uint64 {
	clear(v.memory(a[1], int(a[2])))
	return errno(unix.EINVAL)
}

// csumLevel is bpf_csum_level of a packet with CHECKSUM_NONE.
func csumLevel(_ *VM, a [5]uint64) uint64 {
	const query = 0
	if a[1] == query {
		return errno(unix.EACCES)
	}
	return 0
}

// csumDiff is bpf_csum_diff.
func (v *VM) csumDiff(a [5]uint64) uint64 {
	sum := uint32(a[4])
	for _, part := range []struct {
		at, size uint64
		flip     uint32
	}{{a[0], a[1], 0xffffffff}, {a[2], a[3], 0}} {
		if part.size == 0 {
			continue
		}
		for b := bytes.Clone(v.memory(part.at, int(part.size))); len(b) >= 4; b = b[4:] {
			sum = csumAdd(sum, binary.NativeEndian.Uint32(b)^part.flip)
		}
	}
	return uint64(sum)
}

func csumAdd(a, b uint32) uint32 {
	sum := a + b
	if sum < b {
		sum++
	}
	return sum
}

func csum16Add(a, b uint16) uint16 {
	sum := a + b
	if sum < b {
		sum++
	}
	return sum
}

func csumFold(sum uint32) uint16 {
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum&0xffff)
}

// l4CsumReplace is bpf_l4_csum_replace of a packet with CHECKSUM_NONE.
func (v *VM) l4CsumReplace(a [5]uint64) uint64 {
	const mangled0, enforce, lengths = 1 << 5, 1 << 6, 15
	at := v.at(uint64(uint32(a[1])), 2)
	if at == nil {
		return errno(unix.EFAULT)
	}
	old := binary.NativeEndian.Uint16(at)
	if a[4]&mangled0 != 0 && a[4]&enforce == 0 && old == 0 {
		return 0
	}
	sum, n := ^uint32(old), uint16(0)
	switch from, to := uint32(a[2]), uint32(a[3]); a[4] & lengths {
	case 0:
		if from != 0 {
			return errno(unix.EINVAL)
		}
		n = csumFold(csumAdd(to, sum))
	case 2:
		n = ^csum16Add(csum16Add(^old, ^uint16(from)), uint16(to))
	case 4:
		n = csumFold(csumAdd(csumAdd(sum, ^from), to))
	}
	if a[4]&mangled0 != 0 && n == 0 {
		n = 0xffff
	}
	binary.NativeEndian.PutUint16(at, n)
	return 0
}
