// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* Intercept sorts packets into classes as early as can be, and passes, drops, marks or answers them, or delivers them to a program
 * through a ring in its memory (record.h). control.go fills the maps. */
#include <kerb/module.h>
#include "class.h"
#include "deliver.h"
#include "control.h"
#include "answer.h"

static __always_inline int may_match(const struct icpt_table *t, const struct icpt_key *k)
{
	if (!(t->directions & k->direction))
		return 0;
	__u32 port = k->to_port;

	asm volatile("" : "+r"(port)); /* verifiers up to that of 6.12 forget how large a short from the stack can be */
	return t->any_port || !k->has_ports || t->ports[port >> 5 & 2047] >> (port & 31) & 1;
}

static __always_inline int fill_addresses(struct icpt_key *k, const struct kerb_pkt *pkt)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (ip4) {
		k->from[0] = ip4->saddr;
		k->to[0] = ip4->daddr;
		return 1;
	}
	if (!ip6)
		return 0;
	__builtin_memcpy(k->from, &ip6->saddr, sizeof(k->from));
	__builtin_memcpy(k->to, &ip6->daddr, sizeof(k->to));
	return 1;
}

static __always_inline void fill_payload(struct icpt_key *k, const struct kerb_pkt *pkt)
{
	__u32 header = 0;
	struct tcphdr *tcp = kerb_tcp(pkt);

	if (tcp)
		header = tcp->doff * 4;
	else if (pkt->flags & KERB_F_L4)
		header = 8; /* UDP, ICMP, ICMPv6 */
	k->found.payload = pkt->l4 + header;
	if (!(pkt->flags & KERB_F_FRAG_LATER) && pkt->l4_len >= header)
		k->payload_len = pkt->l4_len - header;
}

static __always_inline void fill_ports(struct icpt_key *k, const struct kerb_pkt *pkt)
{
	__be16 *ports = kerb_ports(pkt);

	if (!ports)
		return;
	k->has_ports = 1;
	k->from_port = bpf_ntohs(ports[0]);
	k->to_port = bpf_ntohs(ports[1]);
}

static __always_inline int mark(struct kerb_pkt *pkt, const struct icpt_found *k, struct icpt_counts *n)
{
#ifdef KERB_HOOK_TC
	((struct __sk_buff *)pkt->ctx)->priority = k->priority;
#else
	n->unmarked++;
#endif
	return KERB_NEXT;
}

static __always_inline int act(struct kerb_pkt *pkt, const struct icpt_found *k, __u32 direction)
{
	struct icpt_counts *n = bpf_map_lookup_elem(&class_counts, &k->identity);
	struct icpt_flow *f = bpf_map_lookup_elem(&flows, &k->class);

	if (!n || !f)
		return KERB_NEXT;
	n->packets++;
	n->bytes += pkt->len;
	icpt_count_gap(n, f, k->time);
	if (use_answers && direction == ICPT_INGRESS && k->action == ICPT_ANSWER)
		return icpt_answer(pkt, k, n);
	switch (k->action) {
	case ICPT_DROP:
		return kerb_drop(pkt, KERB_DROP_POLICY);
	case ICPT_MARK:
		return mark(pkt, k, n);
	case ICPT_COPY:
	case ICPT_STEAL:
		return icpt_deliver(pkt, k, f, n);
	}
	return KERB_NEXT;
}

/* Only IP is sorted: ARP and the like always pass. A function of its own, whose stack is free again afterwards. */
static __noinline int find(struct kerb_pkt *pkt, struct icpt_found *found)
{
	struct icpt_key k = {.ctx = pkt->ctx, .direction = found->direction, .found.direction = found->direction};
	struct icpt_table *t = icpt_table();

	if (!t || !pkt->family)
		return 0;
	k.family = pkt->family;
	k.proto = pkt->proto;
	fill_ports(&k, pkt);
	if (!may_match(t, &k) || !fill_addresses(&k, pkt))
		return 0;
	fill_payload(&k, pkt);
	icpt_find(&k);
	*found = k.found;
	return 0;
}

static __always_inline int intercept(struct kerb_pkt *pkt, __u32 direction)
{
	struct icpt_found found = {.direction = direction};
	__u32 zero = 0;
	struct icpt_shared *shared = bpf_map_lookup_elem(&states, &zero);

	if (!shared)
		return KERB_NEXT;
	kerb_forget(pkt);
	if (*(volatile __u32 *)&shared->doorbell)
		icpt_take_controls(shared);
	find(pkt, &found);
	kerb_forget(pkt);
	return found.any ? act(pkt, &found, direction) : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	return intercept(pkt, ICPT_INGRESS);
}

KERB_EGRESS(pkt)
{
	return intercept(pkt, ICPT_OUTGOING);
}

KERB_LICENSE("Dual BSD/GPL");
