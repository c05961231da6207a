// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

func TestMemoryReadings(t *testing.T) {
	m, err := ReadKernelMemory()
	if err != nil || m.Slab <= 0 || m.Percpu <= 0 || m.Vmalloc <= 0 {
		t.Errorf("kernel memory %+v, %v", m, err)
	}
	rss, err := Resident(os.Getpid())
	if err != nil || rss < 1<<20 || rss > 1<<32 {
		t.Errorf("resident %d, %v", rss, err)
	}
	if _, err := Resident(0); err == nil {
		t.Error("process 0 has memory")
	}
}

// The references have one program in total, or four for each service, and release them.
func TestReferences(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.NewIn("kbsct")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	services, err := lab.Hosts(5, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name               string
		open               func(*netlab.Lab) (Node, error)
		distinct, attached int
	}{
		{"shared", openShared, 1, 2 * 5},
		{"copies", openCopies, Modules * 5, 2 * Modules * 5},
	} {
		node, err := tc.open(lab)
		if errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(node.Attach(services[:2]), node.Attach(services[2:]), node.Rechain()); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if distinct, attached := programs(t, lab, services); distinct != tc.distinct || attached != tc.attached {
			t.Errorf("%s: %d programs on %d places, want %d on %d", tc.name, distinct, attached, tc.distinct, tc.attached)
		}
		if o, err := ReadObjects(); err != nil || o.Programs < tc.distinct || o.Maps < tc.distinct || o.Charged <= 0 {
			t.Errorf("%s: %+v, %v", tc.name, o, err)
		}
		if err := node.Close(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if _, attached := programs(t, lab, services); attached != 0 {
			t.Errorf("%s: %d programs stay attached", tc.name, attached)
		}
	}
}

// programs counts the programs on both hooks of the services.
func programs(t *testing.T, lab *netlab.Lab, services []*netlab.Host) (distinct, attached int) {
	t.Helper()
	ids := map[int]bool{}
	err := lab.Node().Do(func() error {
		for _, service := range services {
			for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
				found, err := link.QueryPrograms(link.QueryOptions{Target: service.OuterIndex(), Attach: hook})
				if err != nil {
					return err
				}
				for _, p := range found.Programs {
					ids[int(p.ID)] = true
					attached++
				}
			}
			n, err := countFilters(service.OuterIndex(), ids)
			if err != nil {
				return err
			}
			attached += n
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return len(ids), attached
}

func countFilters(ifindex int, ids map[int]bool) (n int, err error) {
	nic, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return 0, err
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(nic, parent)
		if err != nil {
			return 0, err
		}
		for _, f := range filters {
			if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Id != 0 {
				ids[bpf.Id] = true
				n++
			}
		}
	}
	return n, nil
}
