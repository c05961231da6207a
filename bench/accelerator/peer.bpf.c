// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* Cilium's host routing between two pods of a node, without connection tracking and policy: at the
 * host end of a pod's veth, the program translates the service's address and redirects the packet
 * into the other pod's namespace (bpf_redirect_peer), bypassing the host's stack. */
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* in network byte order */
const volatile __u32 client_address, server_address, service_address;
const volatile __u32 client_ifindex, server_ifindex;

static __always_inline int redirect_translated(struct __sk_buff *skb, __u32 at, __u32 from,
					       __u32 to, __u32 ifindex)
{
	const __u32 tcp_check = ETH_HLEN + sizeof(struct iphdr) + offsetof(struct tcphdr, check);

	if (bpf_l4_csum_replace(skb, tcp_check, from, to, BPF_F_PSEUDO_HDR | sizeof(to)) ||
	    bpf_l3_csum_replace(skb, ETH_HLEN + offsetof(struct iphdr, check), from, to,
				sizeof(to)) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + at, &to, sizeof(to), 0))
		return TC_ACT_SHOT;
	return bpf_redirect_peer(ifindex, 0);
}

SEC("tc")
int redirect_peer(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)skb->data_end || eth->h_proto != bpf_htons(ETH_P_IP) ||
	    ip->ihl != 5 || ip->protocol != IPPROTO_TCP)
		return TC_ACT_OK;
	if (ip->saddr == client_address && ip->daddr == service_address)
		return redirect_translated(skb, offsetof(struct iphdr, daddr), service_address,
					   server_address, server_ifindex);
	if (ip->saddr == server_address && ip->daddr == client_address)
		return redirect_translated(skb, offsetof(struct iphdr, saddr), server_address,
					   service_address, client_ifindex);
	return TC_ACT_OK;
}

char _license[] SEC("license") = "Dual BSD/GPL";
