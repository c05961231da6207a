/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers to rejected packets: a TCP reset, or an ICMP error. On TC the answer leaves by the
 * interface that the packet came from, and so meets the firewall again, in the other direction. Its
 * rules would often deny it, as it belongs to no connection. So what has been answered is noted,
 * and the answer passes once. On XDP it does not meet the firewall. */
#ifndef FW_REJECT_H
#define FW_REJECT_H

#include <kerb/answer.h>

#include "flow.h"
#include "state.h"

#define FW_ANSWERS 512
#define FW_ANSWER_TICK 20 /* binary logarithm of the unit of time, about a millisecond */

KERB_CONFIG(__u32, answer_time, 1000); /* units that an answer may take */

/* By direction of the answer, else the sender of a rejected packet could send what passes for one,
 * and by hash of the key: the rest of the hash in the upper half, time of the rejection in the
 * lower. A rejection overwrites what is there; the older answer is then up to the rules. */
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

/* After the packet in the scratch map has been answered. An answer has its key: a reset by its own
 * headers, an ICMP error by those that it quotes. */
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

/* Whether the packet may be what fw_answer() makes of one: a reset that carries nothing, or an
 * error that carries no more than a quote. */
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

/* Whether the packet is the answer to one that was rejected; the next one is not. */
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

/* Turns a packet into the answer to it, or returns KERB_DROP where none is due: see
 * <kerb/answer.h>. A global function, which the verifier checks once and not for each way to it.
 * where: l3, l4, family, proto and flags of the packet. */
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
