// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// dpdkSource is compiled separately, if pkg-config finds DPDK. The other sources need no library.
const dpdkSource = "src/dpdk.c"

// dpdkParts are the static libraries of DPDK that the program links: the common ones, by version, and the drivers of
// interfaces that remain under Linux. With shared libraries it would load the drivers of all NICs at the start.
var dpdkParts = []string{"eal", "kvargs", "telemetry", "log", "argparse", "ethdev", "meter", "net", "mbuf", "mempool",
	"ring", "rcu", "bus_vdev", "mempool_ring", "net_af_packet", "net_af_xdp"}

// dpdkNeeds are the shared libraries that these parts need.
var dpdkNeeds = []string{"-lbpf", "-lxdp", "-lelf", "-lz", "-lnuma", "-lbsd", "-ldl"}

// compileDPDK compiles the program in the directory of the others. If DPDK is not installed, or cannot be linked, it
// returns an error for LeftOut.
func (t *tools) compileDPDK(ctx context.Context) error {
	if os.Getenv(bench.ProgramCacheEnv) != "" {
		return fmt.Errorf("%w: the precompiled programs of %s do not include DPDK", bench.ErrLeftOut, bench.ProgramCacheEnv)
	}
	out, err := exec.CommandContext(ctx, "pkg-config", "--static", "--cflags", "--libs", "libdpdk").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = errors.New(strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return fmt.Errorf("%w: `scripts/setup bench` installs DPDK (Debian: libdpdk-dev): %w", bench.ErrLeftOut, err)
	}
	if err := t.Add(ctx, dpdkSource, dpdkFlags(strings.Fields(string(out)))...); err != nil {
		return fmt.Errorf("%w: %w", bench.ErrLeftOut, err)
	}
	return nil
}

// dpdkFlags selects the flags that the program needs from those of pkg-config for all of DPDK.
func dpdkFlags(all []string) (flags []string) {
	var archives, needs []string
	for i, f := range all {
		name, isArchive := strings.CutPrefix(f, "-l:librte_")
		switch {
		case isArchive && slices.Contains(dpdkParts, strings.TrimSuffix(name, ".a")):
			archives = append(archives, f)
		case slices.Contains(dpdkNeeds, f) && !slices.Contains(needs, f):
			needs = append(needs, f)
		case f == "-include" && i+1 < len(all):
			flags = append(flags, f, all[i+1])
		case strings.HasPrefix(f, "-I"), strings.HasPrefix(f, "-L"), strings.HasPrefix(f, "-D"):
			flags = append(flags, f)
		}
	}
	flags = append(append(flags, "-Wl,--whole-archive"), archives...)
	return append(append(flags, "-Wl,--no-whole-archive"), needs...)
}

func (c *controller) wantsDPDK() bool {
	return slices.ContainsFunc(boxes, func(b box) bool { return b.program == "dpdk" && c.run.Wants(b.name) })
}

// possible returns an error if a box cannot be measured.
func (c *controller) possible(b box) error {
	if b.program == "dpdk" {
		return c.noDPDK
	}
	return nil
}

// dpdkOptions returns the options of a driver. The AF_XDP driver uses a custom XDP program, which passes other packets
// to Linux, and receives without system calls.
func dpdkOptions(driver, nic, dir string) string {
	if driver == "net_af_xdp" {
		return fmt.Sprintf("iface=%s,busy_budget=0,xdp_prog=%s", nic, filepath.Join(dir, "dpdk.bpf.o"))
	}
	return "iface=" + nic + ",framecnt=8192"
}
