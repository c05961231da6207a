// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The module under replacement, as a separate program: it stamps every packet of the numbered
 * stream. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define STREAM_PORT 7411

/* The version of the module. */
const volatile __u32 generation;

/* Payload of the stream, in the machine's byte order. */
struct numbered {
	__u64 seq;
	__u32 stamps; /* how many modules have seen the packet */
	__u32 generation; /* of the last of them */
};

SEC("tc")
int stamp(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);
	struct numbered *n = (void *)(udp + 1);

	if ((void *)(n + 1) > end)
		return -1; /* TC_ACT_UNSPEC */
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return -1;
	if (udp->dest != bpf_htons(STREAM_PORT))
		return -1;
	n->stamps++;
	n->generation = generation;
	return -1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
