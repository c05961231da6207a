// SPDX-License-Identifier: Apache-2.0

// Package all links every experiment into the program that imports it.
package all

import (
	_ "github.com/kerb-edge/kerb/bench/accelerator"
	_ "github.com/kerb-edge/kerb/bench/chain"
	_ "github.com/kerb-edge/kerb/bench/classifier"
	_ "github.com/kerb-edge/kerb/bench/control"
	_ "github.com/kerb-edge/kerb/bench/firewall"
	_ "github.com/kerb-edge/kerb/bench/intercept"
	_ "github.com/kerb-edge/kerb/bench/kube"
	_ "github.com/kerb-edge/kerb/bench/paper"
	_ "github.com/kerb-edge/kerb/bench/proxy"
	_ "github.com/kerb-edge/kerb/bench/responder"
	_ "github.com/kerb-edge/kerb/bench/scale"
	_ "github.com/kerb-edge/kerb/bench/swap"
	_ "github.com/kerb-edge/kerb/bench/tunnel"
)
