/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Extractor flow: packets of both directions of a 5-tuple, or of all flows with a remote address.
 * Later fragments have no ports: they are a separate flow, with ports 0. */
#ifndef CLS_FLOW_H
#define CLS_FLOW_H

#include "action.h"

static __always_inline void cls_addr_set4(__u8 *to, __be32 addr)
{
	to[10] = 0xff;
	to[11] = 0xff;
	__builtin_memcpy(to + 12, &addr, sizeof(addr));
}

/* local: the packet is from the service's side. */
static __always_inline int cls_flow_addresses(struct kerb_pkt *pkt, struct cls_source *s,
					      __u32 local)
{
	struct iphdr *ip4 = kerb_ip4(pkt);
	struct ipv6hdr *ip6 = kerb_ip6(pkt);

	if (ip4) {
		cls_addr_set4(s->addr, local ? ip4->daddr : ip4->saddr);
		if (!by_peer)
			cls_addr_set4(s->local, local ? ip4->saddr : ip4->daddr);
		return 0;
	}
	if (!ip6)
		return -1;
	__builtin_memcpy(s->addr, local ? &ip6->daddr : &ip6->saddr, sizeof(s->addr));
	if (!by_peer)
		__builtin_memcpy(s->local, local ? &ip6->saddr : &ip6->daddr, sizeof(s->local));
	return 0;
}

static __always_inline void cls_flow_ports(struct kerb_pkt *pkt, struct cls_source *s, __u32 local)
{
	struct udphdr *ports = 0;

	if (pkt->flags & KERB_F_L4 && (pkt->proto == IPPROTO_TCP || pkt->proto == IPPROTO_UDP))
		ports = kerb_at(pkt, pkt->l4, sizeof(*ports));
	if (!ports)
		return;
	s->port = local ? ports->dest : ports->source;
	s->local_port = local ? ports->source : ports->dest;
}

static __always_inline int cls_flow_source(struct kerb_pkt *pkt, struct cls_work *w, __u32 local)
{
	struct cls_source *s = &w->job.source;

	__builtin_memset(s, 0, sizeof(*s));
	if (cls_flow_addresses(pkt, s, local))
		return -1;
	s->ifindex = pkt->ifindex;
	s->kind = CLS_FLOW;
	if (by_peer)
		return 0;
	s->proto = pkt->proto;
	cls_flow_ports(pkt, s, local);
	return 0;
}

/* Returns the destination port of the packet, which is the port of a flow that it opens. */
static __always_inline __be16 cls_to_port(const struct cls_source *s, __u32 local)
{
	return local ? s->port : s->local_port;
}

static __always_inline void cls_flow_flags(struct cls_record *r, __u8 flags)
{
	for (int i = 0; i < 6; i++) {
		if (flags >> i & 1)
			cls_add(r->sum[CLS_FLOW_FIN + i], 1);
	}
}

/* Returns the length of the transport header in bytes; 0 if unknown. */
static __always_inline __u32 cls_transport_len(const struct kerb_pkt *pkt, const struct tcphdr *tcp)
{
	if (tcp)
		return tcp->doff * 4;
	return pkt->flags & KERB_F_L4 ? 8 : 0; /* UDP, ICMP */
}

static __always_inline void cls_flow_packet(struct kerb_pkt *pkt, struct cls_work *w,
					    struct cls_record *r, __u32 back)
{
	struct tcphdr *tcp = kerb_tcp(pkt);
	__u64 len = pkt->l4 - pkt->l3 + pkt->l4_len, gap = (w->now - r->last) / 1000;
	struct cls_slice *s = cls_slice(r, r->slice);

	cls_add(r->sum[CLS_FLOW_PACKETS + (back & 1)], 1);
	cls_add(r->sum[CLS_FLOW_BYTES + (back & 1)], len);
	cls_add(r->sum[CLS_FLOW_SQUARES], len * len);
	cls_range_extend(&s->length, len);
	if (r->last && w->now >= r->last) {
		if (gap > KERB_FEATURE_LIMIT)
			gap = KERB_FEATURE_LIMIT;
		cls_add(r->sum[CLS_FLOW_GAPS], gap);
		cls_add(r->sum[CLS_FLOW_GAP_SQUARES], gap * gap);
		cls_add(r->sum[CLS_FLOW_GAP_COUNT], 1);
		cls_range_extend(&s->gap, gap);
	}
	r->last = w->now;
	if (tcp)
		cls_flow_flags(r, ((__u8 *)tcp)[13]);
	if (pkt->flags & KERB_F_FRAG_LATER)
		cls_add(r->sum[CLS_FLOW_FRAGMENTS], 1);
	if (pkt->l4_len > cls_transport_len(pkt, tcp))
		cls_add(r->sum[CLS_FLOW_PAYLOADS], 1);
	cls_count(CLS_COUNT_MESSAGES);
}

static __always_inline void cls_flow_values(struct cls_work *w, const struct cls_record *r)
{
	const __u64 *sum = w->sum;
	__u64 packets = sum[0] + sum[1], bytes = sum[2] + sum[3], gaps = sum[CLS_FLOW_GAP_COUNT];

	for (int i = 0; i < 4; i++)
		cls_value(w, CLS_F_PACKETS_FORWARD + i, sum[i]);
	cls_value(w, CLS_F_LENGTH_MIN, w->length.low > w->length.high ? 0 : w->length.low);
	cls_value(w, CLS_F_LENGTH_MAX, w->length.high);
	cls_value(w, CLS_F_LENGTH_MEAN, cls_mean(bytes, packets));
	cls_value(w, CLS_F_LENGTH_DEVIATION, cls_deviation(bytes, sum[CLS_FLOW_SQUARES], packets));
	cls_value(w, CLS_F_FLOW_GAP_MIN, w->gap.low > w->gap.high ? 0 : w->gap.low);
	cls_value(w, CLS_F_FLOW_GAP_MAX, w->gap.high);
	cls_value(w, CLS_F_FLOW_GAP_MEAN, cls_mean(sum[CLS_FLOW_GAPS], gaps));
	cls_value(w, CLS_F_FLOW_GAP_DEVIATION,
		  cls_deviation(sum[CLS_FLOW_GAPS], sum[CLS_FLOW_GAP_SQUARES], gaps));
	for (int i = 0; i < 8; i++) /* flags, fragments, payloads */
		cls_value(w, CLS_F_FIN + i, sum[CLS_FLOW_FIN + i]);
	cls_value(w, CLS_F_DURATION, (r->last - r->first) / 1000000);
	cls_value(w, CLS_F_PROTOCOL, w->job.source.proto);
	cls_value(w, CLS_F_PORT, bpf_ntohs(r->service_port));
	cls_value(w, CLS_F_LENGTH_FORWARD_MEAN,
		  cls_mean(sum[CLS_FLOW_BYTES], sum[CLS_FLOW_PACKETS]));
	cls_value(w, CLS_F_LENGTH_BACKWARD_MEAN,
		  cls_mean(sum[CLS_FLOW_BYTES + 1], sum[CLS_FLOW_PACKETS + 1]));
	cls_value(w, CLS_F_PACKETS, packets);
	cls_value(w, CLS_F_BACKWARD_SHARE, cls_mean(sum[CLS_FLOW_PACKETS + 1] * 1000, packets));
}

static __always_inline void cls_flow_counted(struct kerb_pkt *pkt, struct cls_work *w,
					     struct cls_record *r, __u32 local)
{
	__u64 slice;

	if (cls_window_close(w, r, &slice)) {
		cls_flow_values(w, r);
		cls_window_closed(w, r, slice);
		if (when == CLS_PER_WINDOW && w->held)
			w->due = 1;
	}
	cls_timer_arm(w, r);
	cls_flow_packet(pkt, w, r, by_peer ? local : local != r->opener);
	if (cls_evaluation_due(w, r)) {
		cls_flow_values(w, r);
		w->due = 1;
	}
}

static __always_inline int cls_flow(struct kerb_pkt *pkt, struct cls_work *w, struct cls_fuse *z,
				    __u32 local)
{
	struct cls_record *r;

	if (cls_flow_source(pkt, w, local)) {
		cls_count(pkt->outcome > KERB_PARSE_NOT_IP ? CLS_COUNT_TRUNCATED
							   : CLS_COUNT_NOT_OURS);
		return KERB_NEXT;
	}
	w->fresh.opener = local;
	w->fresh.service_port = cls_to_port(&w->job.source, local);
	r = cls_source_lookup(w, z);
	if (r) {
		cls_flow_counted(pkt, w, r, local);
		cls_note_evaluation(pkt, r);
	}
	/* dropped packets were counted: their window decides whether the block continues */
	return cls_enforce(pkt, w, z);
}

#endif
