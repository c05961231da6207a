// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* What takes T1 for the receivers that are compared with the intercept module: `stamp` writes it
 * into the packet and has the stack continue, `to_socket` hands the packet to an AF_XDP socket,
 * `to_array` is the original's way, a copy in an array that user space polls. IPv4 without options,
 * and UDP without checksum, to the server's port. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "src/message.h"

const volatile __u16 server_port;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, ARRAY_SLOTS);
	__type(key, __u32);
	__type(value, struct array_slot);
} slots SEC(".maps");

__u64 last; /* number of the last slot's packet; packets come in on one CPU */

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct message message;
} __attribute__((packed));

static __always_inline struct frame *ours(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    f->eth.h_proto != bpf_htons(ETH_P_IP) || f->ip.ihl != 5 || f->ip.version != 4 ||
	    f->ip.protocol != IPPROTO_UDP || f->udp.dest != bpf_htons(server_port))
		return 0;
	return f;
}

SEC("xdp")
int stamp(struct xdp_md *ctx)
{
	struct frame *f = ours(ctx);

	if (f)
		f->message.arrived = bpf_ktime_get_ns();
	return XDP_PASS;
}

SEC("xdp")
int to_socket(struct xdp_md *ctx)
{
	struct frame *f = ours(ctx);

	if (!f)
		return XDP_PASS;
	f->message.arrived = bpf_ktime_get_ns();
	return bpf_redirect_map(&sockets, 0, XDP_DROP);
}

SEC("xdp")
int to_array(struct xdp_md *ctx)
{
	struct frame *f = ours(ctx);

	if (!f)
		return XDP_PASS;
	__u64 now = bpf_ktime_get_ns(), number = last + 1;
	__u32 key = number % ARRAY_SLOTS;
	__u32 len = ctx->data_end - ctx->data;
	struct array_slot *s = bpf_map_lookup_elem(&slots, &key);

	if (!s || len > ARRAY_DATA)
		return XDP_DROP;
	/* what the verifier knows of it: 1 to ARRAY_DATA */
	len = ((len - 1) & (ARRAY_DATA - 1)) + 1;
	if (bpf_xdp_load_bytes(ctx, 0, s->data, len))
		return XDP_DROP;
	s->arrived = now;
	s->len = len;
	last = number;
	__atomic_exchange_n(&s->number, number, __ATOMIC_SEQ_CST);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
