// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The XDP program for DPDK's driver net_af_xdp (its option xdp_prog). The driver's own program
 * would redirect all packets of the interface. This one redirects the messages to the server's port
 * and passes the others to the stack, as with the AF_XDP socket of the benchmark. */
#include "frame.h"

/* The driver finds it by this name. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} xsks_map SEC(".maps");

SEC("xdp")
int redirect_driver(struct xdp_md *ctx)
{
	if (!frame_to(ctx, SERVER_PORT))
		return XDP_PASS;
	return bpf_redirect_map(&xsks_map, ctx->rx_queue_index, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
