// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Destination NAT on a host's interface, both ways, as a proxy does it. */
#ifdef KERB_HOOK_XDP
#error "TC only: XDP cannot tell a partial checksum"
#endif
#define KERB_FIXED_LAYOUT
#include <kerb/types.h>

__attribute__((noinline)) int kerb_head(struct __sk_buff *ctx, struct kerb_pkt *pkt);

#include "../../chain.bpf.c"
#include <kerb/module.h>

struct nat {
	struct in6_addr virtual6, real6;
	__be32 virtual4, real4;
	__be16 virtual_port, real_port;
	__u32 pad;
	/* IPv4 TCP from the host; those of them whose checksum is left to the device */
	__u64 packets, partial;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat);
} nat SEC(".maps");

static __always_inline struct nat *lookup(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&nat, &key);
}

static __always_inline int same6(const struct in6_addr *a, const struct in6_addr *b)
{
	return !__builtin_memcmp(a, b, sizeof(*a));
}

/* A partial checksum is the sum of the pseudo-header. */
static __always_inline void inspect(struct kerb_pkt *pkt, struct nat *n)
{
	struct tcphdr *tcp = kerb_tcp(pkt);
	struct iphdr *ip = kerb_ip4(pkt);

	if (!tcp)
		return;
	if (!ip)
		return;
	n->packets++;
	n->partial += tcp->check == kerb_fold((__u64)ip->saddr + ip->daddr +
					      bpf_htons(IPPROTO_TCP) + bpf_htons(pkt->l4_len));
}

SEC("tc") int from_host(kerb_ctx *ctx)
{
	struct nat *n = lookup();
	struct ipv6hdr *ip6;
	struct kerb_pkt pkt;
	struct iphdr *ip4;
	int rc = 0;

	if (!n)
		return TC_ACT_SHOT;
	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	inspect(&pkt, n);
	ip4 = kerb_ip4(&pkt);
	ip6 = kerb_ip6(&pkt);
	if (ip4) {
		if (ip4->daddr != n->virtual4)
			return TC_ACT_OK;
		rc = kerb_set_ip4_daddr(&pkt, n->real4);
	} else if (ip6) {
		if (!same6(&ip6->daddr, &n->virtual6))
			return TC_ACT_OK;
		rc = kerb_set_ip6_daddr(&pkt, &n->real6);
	} else {
		return TC_ACT_OK;
	}
	if (!rc && kerb_ports(&pkt))
		rc = kerb_set_dport(&pkt, n->real_port);
	return rc ? TC_ACT_SHOT : TC_ACT_OK;
}

SEC("tc") int to_host(kerb_ctx *ctx)
{
	struct nat *n = lookup();
	struct ipv6hdr *ip6;
	struct kerb_pkt pkt;
	struct iphdr *ip4;
	int rc = 0;

	if (!n)
		return TC_ACT_SHOT;
	kerb_enter(ctx, &pkt);
	kerb_head(ctx, &pkt);
	ip4 = kerb_ip4(&pkt);
	ip6 = kerb_ip6(&pkt);
	if (ip4) {
		if (ip4->saddr != n->real4)
			return TC_ACT_OK;
		rc = kerb_set_ip4_saddr(&pkt, n->virtual4);
	} else if (ip6) {
		if (!same6(&ip6->saddr, &n->real6))
			return TC_ACT_OK;
		rc = kerb_set_ip6_saddr(&pkt, &n->virtual6);
	} else {
		return TC_ACT_OK;
	}
	if (!rc && kerb_ports(&pkt))
		rc = kerb_set_sport(&pkt, n->virtual_port);
	return rc ? TC_ACT_SHOT : TC_ACT_OK;
}
