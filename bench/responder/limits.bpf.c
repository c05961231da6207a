// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* Baselines of the responder in the kernel: `reflect` answers at the driver and only swaps
 * addresses, the upper limit; `to_socket` redirects requests to an AF_XDP server; `drop` discards
 * them, which leaves the client's own cost. They match UDP to the server's port on IPv4 without
 * options, or IPv6 without extension headers (not to_socket). `pass` is for the client's end. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REPLY 3
#define LIMIT 120

const volatile __u16 server_port;

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

struct frame {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__u32 message[2]; /* of the protocol with the shorter one */
} __attribute__((packed));

static __always_inline struct frame *parse_request(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    f->eth.h_proto != bpf_htons(ETH_P_IP) || f->ip.ihl != 5 || f->ip.version != 4 ||
	    f->ip.protocol != IPPROTO_UDP || f->udp.dest != bpf_htons(server_port))
		return 0;
	return f;
}

struct frame6 {
	struct ethhdr eth;
	struct ipv6hdr ip;
	struct udphdr udp;
	__u32 message[2];
} __attribute__((packed));

static __always_inline struct frame6 *parse_request6(struct xdp_md *ctx)
{
	struct frame6 *f = (void *)(long)ctx->data;

	if ((void *)(f + 1) > (void *)(long)ctx->data_end ||
	    f->eth.h_proto != bpf_htons(ETH_P_IPV6) || f->ip.nexthdr != IPPROTO_UDP ||
	    f->udp.dest != bpf_htons(server_port))
		return 0;
	return f;
}

/* IPv6 requires a UDP checksum. Swapping addresses and ports does not change their sum. */
static __always_inline int reflect_ipv6(struct xdp_md *ctx)
{
	struct frame6 *f = parse_request6(ctx);
	__u32 old[2], new[2] = { REPLY, LIMIT }, sum;
	struct in6_addr address;
	__u8 mac[ETH_ALEN];
	__u16 port;

	if (!f)
		return XDP_PASS;
	old[0] = f->message[0];
	old[1] = f->message[1];
	sum = bpf_csum_diff(old, sizeof(old), new, sizeof(new), (__u16)~f->udp.check);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	f->udp.check = (__u16)~sum ? (__u16)~sum : 0xffff;
	f->message[0] = new[0];
	f->message[1] = new[1];
	__builtin_memcpy(mac, f->eth.h_dest, ETH_ALEN);
	__builtin_memcpy(f->eth.h_dest, f->eth.h_source, ETH_ALEN);
	__builtin_memcpy(f->eth.h_source, mac, ETH_ALEN);
	__builtin_memcpy(&address, &f->ip.saddr, sizeof(address));
	__builtin_memcpy(&f->ip.saddr, &f->ip.daddr, sizeof(address));
	__builtin_memcpy(&f->ip.daddr, &address, sizeof(address));
	port = f->udp.source;
	f->udp.source = f->udp.dest;
	f->udp.dest = port;
	return XDP_TX;
}

SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	struct frame *f = parse_request(ctx);

	if (!f)
		return reflect_ipv6(ctx);
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
	f->udp.check = 0;
	f->message[0] = REPLY;
	f->message[1] = LIMIT;
	return XDP_TX;
}

SEC("xdp")
int to_socket(struct xdp_md *ctx)
{
	return parse_request(ctx) ? bpf_redirect_map(&sockets, 0, XDP_PASS) : XDP_PASS;
}

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	return parse_request(ctx) || parse_request6(ctx) ? XDP_DROP : XDP_PASS;
}

SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
