/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers to rejected packets: a TCP reset, or an ICMP error. On TC the answer leaves through the
 * interface that the packet came from, and therefore meets the firewall again, in the other
 * direction, whose rules would often deny it because it belongs to no connection. So the firewall
 * records that it has answered, and lets the answer pass once. On XDP the answer does not meet the
 * firewall. */
#ifndef FW_REJECT_H
#define FW_REJECT_H

#include <kerb/answer.h>

#include "flow.h"
#include "state.h"

#define FW_ANSWERS 512
#define FW_ANSWER_TICK 20 /* binary logarithm of the unit of time, about a millisecond */

KERB_CONFIG(__u32, answer_time, 1000); /* maximum age of an answer, in these units */

/* Indexed by direction of the answer, since otherwise the sender of a rejected packet could send a
 * forged answer, and by hash of the key: the rest of the hash is in the upper half, the time of the
 * rejection in the lower. A rejection overwrites the entry; the rules then decide on the older
 * answer. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_ANSWERS);
	__type(key, __u32);
	__type(value, __u64);
} answers SEC(".maps");

static __always_inline __u64 *fw_answer_at(__u32 hash, __u32 dir)
{
	__u32 index = hash * 0x85ebca6b >> 24 | (dir & 1) << 8; /* 9 bits, for FW_ANSWERS */

	return bpf_map_lookup_elem(&answers, &index);
}

/* Records that the packet in the scratch map was answered. The key of an answer is the packet's:
 * that of a reset from its own headers, that of an ICMP error from the quoted ones. */
static __always_inline void fw_answer_note(void)
{
	struct fw_flow *f = fw_flow();
	__u32 hash;
	__u64 *answer;

	if (!f || f->kind >= FW_ERROR)
		return;
	hash = fw_key_hash(f);
	answer = fw_answer_at(hash, !f->dir);
	if (answer)
		*answer = (__u64)hash << 32 | (__u32)(fw_now() >> FW_ANSWER_TICK);
}

/* Returns whether the packet may come from fw_answer(): a reset without data, or an error with
 * nothing but a quote. */
static __always_inline int fw_is_answer(const struct kerb_pkt *pkt, const struct fw_flow *f)
{
	if (pkt->flags & (KERB_F_FRAG | KERB_F_OPTIONS | KERB_F_EXT))
		return 0;
	if (!f->quoting)
		return f->proto == IPPROTO_TCP && f->tcp & KERB_TCP_RST &&
		       pkt->l4_len == sizeof(struct tcphdr);
	if (f->family == 4)
		return f->word[FW_DIM_SPORT] == KERB_ICMP_UNREACHABLE &&
		       f->word[FW_DIM_DPORT] == KERB_ICMP_PROHIBITED &&
		       pkt->l4_len <= sizeof(struct kerb_icmp_hdr) + KERB_QUOTE4;
	return f->word[FW_DIM_SPORT] == KERB_ICMP6_UNREACHABLE &&
	       f->word[FW_DIM_DPORT] == KERB_ICMP6_PROHIBITED &&
	       pkt->l4_len <= sizeof(struct kerb_icmp_hdr) + KERB_QUOTE6;
}

/* Returns whether the packet is the answer to a rejected one. The next such packet is not. */
static __always_inline int fw_answer_take(const struct kerb_pkt *pkt, const struct fw_flow *f)
{
	__u32 hash, age;
	__u64 *answer;

	if (!FW_BOTH_WAYS || !fw_is_answer(pkt, f))
		return 0;
	hash = fw_key_hash(f);
	answer = fw_answer_at(hash, f->dir);
	if (!answer || *answer >> 32 != hash)
		return 0;
	age = (__u32)(fw_now() >> FW_ANSWER_TICK) - (__u32)*answer;
	*answer = 0;
	return age <= answer_time;
}

/* Turns a packet into the answer to it, or returns KERB_DROP if it gets none: see <kerb/answer.h>.
 * A global function, which the verifier checks once and not once per path to it. where: l3, l4,
 * family, proto and flags of the packet. */
__noinline int fw_answer(kerb_ctx *ctx, __u64 where, __u32 l4_len, __u32 len)
{
	struct kerb_pkt pkt = {};
	int verdict;

	pkt.ctx = ctx;
	pkt.ifindex = kerb_ctx_field(ctx, KERB_CTX_IFINDEX);
	pkt.l3 = where & KERB_MAX_HDRS;
	pkt.l4 = where >> 16 & KERB_MAX_HDRS;
	pkt.family = where >> 32;
	pkt.proto = where >> 40;
	pkt.flags = where >> 48;
	pkt.l4_len = l4_len;
	pkt.len = len;
	kerb_reload(&pkt);
	verdict = pkt.proto == IPPROTO_TCP
			  ? kerb_tcp_reset(&pkt)
			  : kerb_icmp_unreachable(&pkt, KERB_UNREACHABLE_PROHIBITED);
	if (FW_BOTH_WAYS && verdict == KERB_REPLY)
		fw_answer_note();
	return verdict;
}

/* Returns KERB_REPLY, or something else if the packet gets no answer. */
static __always_inline int fw_reject(struct kerb_pkt *pkt)
{
	__u64 where = pkt->l3 | pkt->l4 << 16 | (__u64)pkt->family << 32 | (__u64)pkt->proto << 40 |
		      (__u64)pkt->flags << 48;
	int verdict = fw_answer(pkt->ctx, where, pkt->l4_len, pkt->len);

	kerb_reload(pkt);
	return verdict;
}

#endif
