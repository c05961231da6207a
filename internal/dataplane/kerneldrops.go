// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/bpf"
)

// traceKernel is the position of the event of a packet that the kernel dropped after the last chain.
const traceKernel = 0xfe

// ErrKernelDrops reports that this kernel does not show which packets it drops, and why.
var ErrKernelDrops = errors.New("the kernel does not report dropped packets")

// KernelDropped reports whether the event is a drop by the kernel, after the packet's last chain.
func (e TraceEvent) KernelDropped() bool { return e.Position == traceKernel }

// KernelReason returns the reason of such an event by its kernel name, such as NO_SOCKET, and the kernel function that
// dropped the packet.
func (e TraceEvent) KernelReason() (reason, function string) {
	name, _, _ := bytes.Cut(e.Bytes, []byte{0})
	reasons, _ := kernelReasons()
	if reason, known := reasons[e.NoteWord]; known {
		return reason, string(name)
	}
	return strconv.FormatUint(e.NoteWord, 10), string(name)
}

// kernelReasons are the running kernel's names of drop reasons, whose numbers change between versions.
var kernelReasons = sync.OnceValues(func() (map[uint64]string, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("%w: no type information: %w", ErrKernelDrops, err)
	}
	var reasons *btf.Enum
	if err := types.TypeByName("skb_drop_reason", &reasons); err != nil {
		return nil, fmt.Errorf("%w: drop reasons need Linux 5.17", ErrKernelDrops)
	}
	out := map[uint64]string{}
	for _, v := range reasons.Values {
		name, _ := strings.CutPrefix(v.Name, "SKB_DROP_REASON_")
		out[v.Value] = strings.TrimPrefix(name, "SKB_")
	}
	return out, nil
})

// kernelDrops reports packets that the kernel drops. It is not pinned: it ends with the agent.
type kernelDrops struct {
	programs *ebpf.Collection
	link     link.Link
}

func (k *kernelDrops) Close() {
	if k.link != nil {
		k.link.Close()
	}
	k.programs.Close()
}

// watchKernel makes the kernel report drops to sessions that want them. It returns ErrKernelDrops if it cannot.
func (t *tracer) watchKernel() error {
	if t.kernel != nil {
		return nil
	}
	if _, err := kernelReasons(); err != nil {
		return err
	}
	spec, err := kernelDropsSpec()
	if err != nil {
		return err
	}
	k := &kernelDrops{}
	if k.programs, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"kerb_filter": t.filters, "kerb_events": t.rings, "kerb_followed": t.follow}}); err != nil {
		return fmt.Errorf("%w: it refuses the program: %w", ErrKernelDrops, err)
	}
	k.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb",
		Program: k.programs.Programs["kerb_kernel_drop"]})
	if err != nil {
		k.Close()
		return fmt.Errorf("%w: it refuses the tracepoint kfree_skb: %w", ErrKernelDrops, err)
	}
	t.kernel = k
	return nil
}

// ignoreKernel ends the reports unless another session wants them.
func (t *tracer) ignoreKernel() {
	for _, s := range t.sessions {
		if s != nil && s.filter.After {
			return
		}
	}
	if t.kernel != nil {
		t.kernel.Close()
		t.kernel = nil
	}
}

func kernelDropsSpec() (*ebpf.CollectionSpec, error) {
	obj, err := fs.ReadFile(bpf.Objects(), "bpf/kernel_drops.o")
	if err != nil {
		return nil, fmt.Errorf("this build lacks its data plane objects (run make bpf): %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(obj))
	if err != nil {
		return nil, err
	}
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, err
	}
	var skb *btf.Struct
	if err := types.TypeByName("sk_buff", &skb); err != nil {
		return nil, err
	}
	for _, name := range []string{"head", "tail", "network_header"} {
		_, offset, found := findMember(skb.Members, name, 0)
		if !found {
			return nil, fmt.Errorf("%w: %w: no field %s", ErrKernelDrops, errSKBLayout, name)
		}
		v := spec.Variables["kerb_skb_"+name]
		if v == nil {
			return nil, fmt.Errorf("kernel_drops.o has no constant for %s", name)
		}
		if err := v.Set(uint32(offset / 8)); err != nil {
			return nil, err
		}
	}
	return spec, nil
}
