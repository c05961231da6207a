/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Extractor rpl: finds the IEEE 802.15.4 frame in a packet, determines its source, and counts its
 * message for that node. */
#ifndef CLS_RPL_H
#define CLS_RPL_H

#include "action.h"
#include "sixlowpan.h"

#define CLS_FCS_LEN 2
#define CLS_ZEP_MAX 32 /* header of version 2 */

/* The position of a frame in its packet. len 0: none. */
struct cls_place {
	__u32 off, len; /* excluding the FCS */
};

/* ZEP (ZigBee Encapsulation Protocol, as in Wireshark): "EX", version; the header of version 1 has
 * 16 bytes with the length last, that of version 2 has a type and 32 bytes. */
static __always_inline struct cls_place cls_zep(struct kerb_pkt *pkt)
{
	struct cls_place none = {}, at;
	struct udphdr *udp = kerb_udp(pkt);
	__u32 off = pkt->l4 + sizeof(*udp), head, len;
	__u8 h[CLS_ZEP_MAX] = {};

	if (!udp || (udp->dest != bpf_htons(zep_port) && udp->source != bpf_htons(zep_port)))
		return none;
	if (kerb_load_bytes(pkt, off, h, 16) || h[0] != 'E' || h[1] != 'X')
		return none;
	if (h[2] == 2) {
		if (h[3] != 1 || kerb_load_bytes(pkt, off, h, CLS_ZEP_MAX)) /* 1: data */
			return none;
		head = 32;
		len = h[31];
	} else {
		head = 16;
		len = h[2] == 1 ? h[15] : 0;
	}
	at.off = off + head;
	at.len = len > CLS_FCS_LEN ? len - CLS_FCS_LEN : 0;
	return at;
}

static __always_inline struct cls_place cls_frame_find(struct kerb_pkt *pkt)
{
	struct cls_place at = {};

	if (frames == CLS_FRAMES_ZEP)
		return cls_zep(pkt);
	if (frames == CLS_FRAMES_ETHERNET) {
		if (pkt->eth_type != frames_eth_type || pkt->outcome != KERB_PARSE_NOT_IP)
			return at;
		at.off = pkt->l3;
	}
	if (pkt->len > at.off + fcs_len)
		at.len = pkt->len - at.off - fcs_len;
	return at;
}

#ifdef KERB_HOOK_XDP
/* Copies byte by byte, for kernels without bpf_xdp_load_bytes() (before Linux 5.18). */
static __always_inline void cls_frame_copy_bytes(kerb_ctx *ctx, struct cls_frame *f, __u32 off,
						 __u64 len)
{
	void *data = (void *)kerb_ctx_field(ctx, data) + (off & KERB_MAX_OFFSET),
	     *end = (void *)kerb_ctx_field(ctx, data_end);

#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < CLS_FRAME_MAX; i++) {
		if (i >= len || data + i + 1 > end)
			break;
		f->b[i] = *(__u8 *)(data + i);
	}
}

static __always_inline int cls_frame_load(kerb_ctx *ctx, struct cls_frame *f, __u32 off, __u64 len)
{
	if (KERB_HAS(xdp_load_bytes))
		return bpf_xdp_load_bytes(ctx, off, f->b, len);
	cls_frame_copy_bytes(ctx, f, off, len);
	return 0;
}
#else
static __always_inline int cls_frame_load(kerb_ctx *ctx, struct cls_frame *f, __u32 off, __u64 len)
{
	return bpf_skb_load_bytes(ctx, off, f->b, len);
}
#endif

/* Copies and parses the frame. Returns enum cls_outcome. Bytes of b after its end are never
 * read. */
__noinline int cls_parse_frame(kerb_ctx *ctx, __u32 off, __u32 len)
{
	struct cls_work *w = cls_work();
	struct cls_frame *f;
	__u64 some;
	int rc;

	if (!w)
		return CLS_NOT_OURS;
	f = &w->frame;
	__builtin_memset(f, 0, __builtin_offsetof(struct cls_frame, b));
	f->kind = CLS_RPL_OTHER;
	if (len > CLS_FRAME_MAX)
		len = CLS_FRAME_MAX;
	if (!len)
		return CLS_TRUNCATED;
	some = len - 1;
	kerb_opaque(some); /* on Linux 6.1 only the masked register has bounds */
	if (cls_frame_load(ctx, f, off, (some & CLS_FRAME_MAX) + 1))
		return CLS_TRUNCATED;
	f->end = len;
	rc = cls_mac_parse(f) ?: cls_lowpan_parse(f);
	return rc == CLS_MESSAGE && !f->id ? CLS_NO_SOURCE : rc;
}

/* Nodes with a short address are distinguished by PAN ID; EUI-64s are unique, and their frames may
 * lack a PAN ID. */
static __always_inline void cls_rpl_source(struct kerb_pkt *pkt, struct cls_work *w)
{
	struct cls_source *s = &w->job.source;
	__u64 id = w->frame.id;

	__builtin_memset(s, 0, sizeof(*s));
	s->addr[0] = 0xfe;
	s->addr[1] = 0x80;
	__builtin_memcpy(s->addr + 8, &id, sizeof(id));
	s->ifindex = pkt->ifindex;
	s->kind = CLS_RPL;
	if (bpf_be64_to_cpu(id) >> 16 == 0x000000fffe00ULL)
		s->pan = w->frame.pan;
}

static __always_inline struct cls_datagram cls_datagram_of(const struct kerb_pkt *pkt,
							   const struct cls_frame *f)
{
	struct cls_datagram d = {
		.link = f->link, .ifindex = pkt->ifindex, .tag = f->tag, .size = f->size
	};

	return d;
}

/* Looks up the source of a later fragment, which is that of the first one. */
static __always_inline int cls_fragment_source(struct kerb_pkt *pkt, struct cls_work *w)
{
	struct cls_datagram d = cls_datagram_of(pkt, &w->frame);
	struct cls_source *s = bpf_map_lookup_elem(&datagrams, &d);

	if (!s)
		return -1;
	w->job.source = *s;
	return 0;
}

/* Returns whether the frame repeats one that was counted: same sender and sequence number, within
 * repeat_ns. */
static __always_inline int cls_frame_is_repeat(struct cls_work *w, struct cls_record *r)
{
	__u32 tag = w->frame.seen, ms = w->now / 1000000;

	if (!repeat_ns || !tag)
		return 0;
	for (int i = 0; i < CLS_SEEN; i++) {
		if (r->seen[i].tag == tag && ms - r->seen[i].ms < repeat_ns / 1000000)
			return 1;
	}
	for (int i = CLS_SEEN - 1; i; i--)
		r->seen[i] = r->seen[i - 1];
	r->seen[0].tag = tag;
	r->seen[0].ms = ms;
	return 0;
}

static __always_inline void cls_count_dio(struct cls_frame *f, struct cls_record *r)
{
	struct cls_slice *s = cls_slice(r, r->slice);

	if (r->has_dio && r->dodag_version != f->version)
		cls_add(r->sum[CLS_RPL_VERSIONS], 1);
	if (r->has_dio && f->rank < r->rank)
		cls_add(r->sum[CLS_RPL_RANKS], 1);
	cls_range_extend(&s->length, f->rank);
	r->dodag_version = f->version;
	r->rank = f->rank;
	r->has_dio = 1;
}

static __always_inline void cls_rpl_message(struct cls_work *w, struct cls_record *r, __u32 len)
{
	struct cls_frame *f = &w->frame;
	__u64 gap = (w->now - r->last) / 1000000;

	cls_add(r->sum[f->kind & 7], 1);
	cls_add(r->sum[CLS_RPL_BYTES], len);
	if (f->rpl && f->broadcast)
		cls_add(r->sum[CLS_RPL_MULTICAST], 1);
	if (f->has_dio)
		cls_count_dio(f, r);
	if (r->last && w->now >= r->last) {
		cls_add(r->sum[CLS_RPL_GAPS], gap);
		cls_add(r->sum[CLS_RPL_GAP_COUNT], 1);
		cls_range_extend(&cls_slice(r, r->slice)->gap, gap);
	}
	r->last = w->now;
	cls_count(CLS_COUNT_MESSAGES);
}

static __always_inline void cls_rpl_values(struct cls_work *w, const struct cls_record *r)
{
	const __u64 *sum = w->sum;
	__u64 messages = 0;

	for (int i = CLS_RPL_DIS; i <= CLS_RPL_OTHER; i++) {
		cls_value(w, CLS_F_DIS + i, sum[i]);
		messages += sum[i];
	}
	cls_value(w, CLS_F_MESSAGES, messages);
	cls_value(w, CLS_F_REPEATS, sum[CLS_RPL_REPEATS]);
	cls_value(w, CLS_F_BYTES, sum[CLS_RPL_BYTES]);
	cls_value(w, CLS_F_MULTICAST, sum[CLS_RPL_MULTICAST]);
	cls_value(w, CLS_F_VERSIONS, sum[CLS_RPL_VERSIONS]);
	cls_value(w, CLS_F_RANKS, sum[CLS_RPL_RANKS]);
	cls_value(w, CLS_F_SECURED, sum[CLS_RPL_SECURED]);
	cls_value(w, CLS_F_FRAGMENTS, sum[CLS_RPL_FRAGMENTS]);
	for (int i = 0; i < 3; i++) { /* DIS, DIO, DAO */
		cls_value(w, CLS_F_DIS_SHARE + i, cls_mean(sum[i] * 1000, messages));
		cls_value(w, CLS_F_DIS_BEFORE + i, r->before[i]);
	}
	cls_value(w, CLS_F_GAP_MIN, w->gap.low > w->gap.high ? 0 : w->gap.low);
	cls_value(w, CLS_F_GAP_MAX, w->gap.high);
	cls_value(w, CLS_F_GAP_MEAN, cls_mean(sum[CLS_RPL_GAPS], sum[CLS_RPL_GAP_COUNT]));
	cls_value(w, CLS_F_RANK_MIN, w->length.low > w->length.high ? 0 : w->length.low);
	cls_value(w, CLS_F_RANK_MAX, w->length.high);
}

/* Counts the frame for its source, and makes an evaluation due if its window has ended. */
static __always_inline void cls_rpl_counted(struct cls_work *w, struct cls_record *r, int outcome,
					    __u32 len)
{
	__u64 slice;

	if (cls_window_close(w, r, &slice)) {
		cls_rpl_values(w, r);
		cls_window_closed(w, r, slice);
		if (when == CLS_PER_WINDOW && w->held)
			w->due = 1;
	}
	cls_timer_arm(w, r);
	if (outcome == CLS_FRAGMENT) {
		cls_add(r->sum[CLS_RPL_FRAGMENTS], 1);
		return;
	}
	if (cls_frame_is_repeat(w, r)) {
		cls_count(CLS_COUNT_REPEATS);
		cls_add(r->sum[CLS_RPL_REPEATS], 1);
		return;
	}
	if (outcome == CLS_SECURED)
		cls_add(r->sum[CLS_RPL_SECURED], 1);
	cls_rpl_message(w, r, len);
	if (cls_evaluation_due(w, r)) {
		cls_rpl_values(w, r);
		w->due = 1;
	}
}

static __always_inline int cls_outcome_count(int outcome)
{
	if (outcome == CLS_TRUNCATED)
		return CLS_COUNT_TRUNCATED;
	if (outcome == CLS_MALFORMED)
		return CLS_COUNT_MALFORMED;
	return outcome == CLS_NOT_OURS ? CLS_COUNT_NOT_OURS : CLS_COUNT_NO_SOURCE;
}

/* Stores the source of the frame in w->job.source and returns 0, or counts it as unknown and
 * returns -1. */
static __always_inline int cls_rpl_owner(struct kerb_pkt *pkt, struct cls_work *w, int outcome)
{
	if (outcome == CLS_FRAGMENT) {
		if (!cls_fragment_source(pkt, w))
			return 0;
		outcome = CLS_NO_SOURCE;
	}
	if (outcome == CLS_SECURED) {
		cls_count(CLS_COUNT_SECURED);
		if (secured == CLS_SECURED_PASS)
			return -1;
		outcome = w->frame.id ? CLS_MESSAGE : CLS_NO_SOURCE;
	}
	if (outcome != CLS_MESSAGE) {
		cls_count(cls_outcome_count(outcome));
		return -1;
	}
	cls_rpl_source(pkt, w);
	if (w->frame.size) {
		struct cls_datagram d = cls_datagram_of(pkt, &w->frame);

		bpf_map_update_elem(&datagrams, &d, &w->job.source, BPF_ANY);
	}
	return 0;
}

static __always_inline int cls_rpl(struct kerb_pkt *pkt, struct cls_work *w, struct cls_fuse *z)
{
	struct cls_place at = cls_frame_find(pkt);
	struct cls_record *r;
	int outcome;

	if (!at.len) {
		cls_count(CLS_COUNT_NOT_OURS);
		return KERB_NEXT;
	}
	outcome = cls_parse_frame(pkt->ctx, at.off, at.len);
	if (outcome == CLS_SECURED && secured == CLS_SECURED_DROP) {
		cls_count(CLS_COUNT_SECURED);
		cls_count(CLS_COUNT_DROPPED_SECURED);
		return kerb_drop(pkt, CLS_DROP_SECURED);
	}
	if (cls_rpl_owner(pkt, w, outcome))
		return KERB_NEXT;
	r = cls_source_lookup(w, z);
	if (r) {
		cls_rpl_counted(w, r, outcome, at.len);
		cls_note_evaluation(pkt, r);
	}
	/* dropped frames were counted: their window decides whether the block continues */
	return cls_enforce(pkt, w, z);
}

#endif
