// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The frames of the benchmark at the XDP hook: IPv4 without options. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "src/message.h"

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct message message;
} __attribute__((packed));

/* frame_to returns the frame if its destination is the port, or NULL. */
static __always_inline struct frame *frame_to(struct xdp_md *ctx, __u16 port)
{
	struct frame *f = (void *)(long)ctx->data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    f->eth.h_proto != bpf_htons(ETH_P_IP) || f->ip.ihl != 5 || f->ip.version != 4 ||
	    f->ip.protocol != IPPROTO_UDP || f->udp.dest != bpf_htons(port))
		return 0;
	return f;
}
