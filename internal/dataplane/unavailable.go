// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// UnavailableID is the map set of modules that cannot be loaded.
const UnavailableID = "unavailable"

// Unavailable represents a module in a chain that cannot be loaded. If it fails closed, it drops every packet, with a
// reason of its own; a module that fails open is left out of chains instead.
func Unavailable(name string, closed bool) Module {
	none := func(chain.Hook) (*ebpf.CollectionSpec, error) { return nil, nil }
	return Module{Name: name, ID: UnavailableID, FailClosed: closed, Spec: none}
}

// unavailable is the code for such a module: pkt->reason = KERB_DROP_UNAVAILABLE; return KERB_DROP.
func (l *linker) unavailable(symbol string) (asm.Instructions, error) {
	var pkt *btf.Struct
	if err := l.object.Types.TypeByName("kerb_pkt", &pkt); err != nil {
		return nil, fmt.Errorf("chain object: %w", err)
	}
	reason, err := pktField(pkt, "reason")
	if err != nil {
		return nil, err
	}
	first := asm.StoreImm(asm.R1, reason, int64(kerbabi.DropUnavailable), asm.Word).WithSymbol(symbol)
	return asm.Instructions{
		btf.WithFuncMetadata(first, functionType(symbol, btf.StaticFunc, "pkt", pkt)),
		asm.Mov.Imm(asm.R0, int32(kerbabi.Drop)),
		asm.Return(),
	}, nil
}
