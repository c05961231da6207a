// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

var errModuleCycle = errors.New("kernel modules depend on each other in a circle")

// guestModules are loaded in every machine in this order, after their dependencies. Modules that a kernel has built in,
// or lacks, are skipped: the smoke tests report missing features. Nothing is loaded on demand, so that tests get the
// same modules on every kernel. crc32c_generic comes first because libcrc32c, a dependency of nf_conntrack and others,
// requests it by an alias that no dependency names.
var guestModules = []string{
	"crc32c_generic",
	"veth", "dummy", "bridge", "br_netfilter", "8021q", "ifb", "tun", "macvlan", "ipvlan", "vrf", "vxlan", "geneve",
	"sch_ingress", "cls_bpf", "act_bpf", "cls_u32", "cls_flower", "act_mirred", "act_gact", "sch_fq", "sch_fq_codel",
	"sch_htb", "sch_netem", "sch_etf",
	"ipip", "ip6_tunnel", "nf_conntrack", "nf_nat", "nf_tables", "nft_chain_nat", "nft_ct", "nft_nat", "tls", "inet_diag",
	"tcp_diag",
	"wireguard", "xfrm_user", "xfrm_interface", "esp4", "esp6",
}

// moduleOrder returns the wanted modules and all their dependencies, each once and after its dependencies. depends
// returns the direct dependencies of a module and whether the module exists as a file; one that does not is skipped.
func moduleOrder(wanted []string, depends func(name string) ([]string, bool, error)) ([]string, error) {
	var order []string
	state := map[string]int{} // 1: being visited, 2: done
	var visit func(name string) error
	visit = func(name string) error {
		switch state[name] {
		case 1:
			return fmt.Errorf("%s: %w", name, errModuleCycle)
		case 2:
			return nil
		}
		state[name] = 1
		deps, exists, err := depends(name)
		if err != nil {
			return err
		}
		for _, dep := range deps {
			if err := visit(moduleName(dep)); err != nil {
				return err
			}
		}
		state[name] = 2
		if exists {
			order = append(order, name)
		}
		return nil
	}
	for _, name := range wanted {
		if err := visit(moduleName(name)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName returns the kernel's spelling of a module: it treats '-' and '_' as equal.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleTree is a kernel's directory of modules. Debian's packages contain no modules.dep (depmod creates it at
// installation), so that the dependencies are read from the modules, as depmod does.
type moduleTree struct {
	files map[string]string // path by module name
	data  map[string][]byte // uncompressed module by name, as far as read
}

func openModules(root string) (*moduleTree, error) {
	t := &moduleTree{map[string]string{}, map[string][]byte{}}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name, _, ok := strings.Cut(d.Name(), ".ko"); ok {
			t.files[moduleName(name)] = path
		}
		return nil
	})
	return t, err
}

// depends returns the dependencies for moduleOrder.
func (t *moduleTree) depends(ctx context.Context) func(string) ([]string, bool, error) {
	return func(name string) ([]string, bool, error) {
		if t.files[name] == "" {
			return nil, false, nil
		}
		data, err := t.read(ctx, name)
		if err != nil {
			return nil, false, err
		}
		deps, err := moduleDepends(data)
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", t.files[name], err)
		}
		return deps, true, nil
	}
}

// read returns a module, uncompressed: some kernels cannot uncompress modules.
func (t *moduleTree) read(ctx context.Context, name string) ([]byte, error) {
	if data, ok := t.data[name]; ok {
		return data, nil
	}
	path := t.files[name]
	data, err := os.ReadFile(path)
	switch filepath.Ext(path) {
	case ".xz":
		data, err = uncompress(ctx, "xz", path)
	case ".zst":
		data, err = uncompress(ctx, "zstd", path)
	}
	if err != nil {
		return nil, err
	}
	t.data[name] = data
	return data, nil
}

func uncompress(ctx context.Context, tool, path string) ([]byte, error) {
	text, err := output(ctx, exec.CommandContext(ctx, tool, "-dc", path))
	return []byte(text), err
}

// moduleDepends reads the direct dependencies from a module's .modinfo section.
func moduleDepends(data []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, nil
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	return parseModinfo(string(info)), nil
}

// parseModinfo parses NUL-separated key=value records.
func parseModinfo(info string) []string {
	for record := range strings.SplitSeq(info, "\x00") {
		if value, ok := strings.CutPrefix(record, "depends="); ok {
			return fields(value)
		}
	}
	return nil
}
