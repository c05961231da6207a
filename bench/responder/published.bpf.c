// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The responder of Weinhold 2023 as the work describes it: one hash map with strings as keys (port,
 * cars, limit), four operations on it per request, checks in the order of its figure 4.2, addresses
 * of both headers swapped, and an updated checksum. It lacks what Kerb's responder adds: other OPs
 * and byte orders than the server's, rate limits, checks of sources, exact counts over several
 * CPUs. In `mixed`, user space writes the limit; `kernel` computes it in fixed point. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include <kerb/fixed.h>

#define REPLY	     3
#define GET	     4
#define OUT_OF_RANGE 5

struct text {
	char of[16];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct text);
	__type(value, __u32);
} state SEC(".maps");

struct message {
	__u32 op, value;
};

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	struct message message;
} __attribute__((packed));

static const struct text key_port = {"port"}, key_cars = {"cars"}, key_limit = {"limit"};

static __always_inline __u32 speed_limit(__u32 cars)
{
	if (cars < 30)
		return 120;
	if (cars >= 100)
		return 30;
	return kerb_fixed_round(75 * KERB_FIXED_ONE -
				45 * kerb_fixed_wave((__u64)((__s64)cars - 65) * (~0ULL / 140)));
}

/* In the order of the work: IPv4, UDP, port, size, OP. Here is the first of the four operations. */
static __always_inline struct frame *parse_request(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	__u32 *port;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    f->eth.h_proto != bpf_htons(ETH_P_IP) || f->ip.ihl != 5 ||
	    f->ip.protocol != IPPROTO_UDP)
		return 0;
	port = bpf_map_lookup_elem(&state, &key_port);
	if (!port || f->udp.dest != bpf_htons(*port) ||
	    f->udp.len != bpf_htons(sizeof(struct udphdr) + sizeof(struct message)))
		return 0;
	return f;
}

static __always_inline void swap_addresses(struct frame *f)
{
	__u8 mac[ETH_ALEN];
	__u32 address = f->ip.saddr;
	__u16 port = f->udp.source;

	__builtin_memcpy(mac, f->eth.h_dest, ETH_ALEN);
	__builtin_memcpy(f->eth.h_dest, f->eth.h_source, ETH_ALEN);
	__builtin_memcpy(f->eth.h_source, mac, ETH_ALEN);
	f->ip.saddr = f->ip.daddr;
	f->ip.daddr = address;
	f->udp.source = f->udp.dest;
	f->udp.dest = port;
}

/* Swapping addresses and ports does not change their sum. */
static __always_inline void write_reply(struct frame *f, __u32 limit)
{
	struct message old = f->message, new = {REPLY, limit};
	__u32 sum;

	swap_addresses(f);
	f->message = new;
	if (!f->udp.check)
		return;
	sum = bpf_csum_diff((void *)&old, sizeof(old), (void *)&new, sizeof(new),
			    (__u16)~f->udp.check);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	f->udp.check = (__u16)~sum ? (__u16)~sum : 0xffff;
}

static __always_inline int answer_request(struct xdp_md *ctx, _Bool mixed)
{
	struct frame *f = parse_request(ctx);
	__u32 cars, limit, *value;

	if (!f || (f->message.op != GET && f->message.op != OUT_OF_RANGE))
		return XDP_PASS;
	value = bpf_map_lookup_elem(&state, &key_cars);
	if (!value)
		return XDP_PASS;
	cars = *value;
	if (f->message.op == OUT_OF_RANGE) {
		cars -= cars > 0;
		bpf_map_update_elem(&state, &key_cars, &cars, BPF_ANY);
		return XDP_DROP;
	}
	cars++;
	bpf_map_update_elem(&state, &key_cars, &cars, BPF_ANY);
	if (mixed) {
		value = bpf_map_lookup_elem(&state, &key_limit);
		if (!value)
			return XDP_PASS;
		limit = *value;
	} else {
		limit = speed_limit(cars);
		bpf_map_update_elem(&state, &key_limit, &limit, BPF_ANY);
	}
	write_reply(f, limit);
	return XDP_TX;
}

SEC("xdp")
int published_mixed(struct xdp_md *ctx)
{
	return answer_request(ctx, 1);
}

SEC("xdp")
int published_kernel(struct xdp_md *ctx)
{
	return answer_request(ctx, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
