// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The proxy: packets to a virtual address are sent to an instance of its service, and replies get
 * the virtual address as their source. */
#define KERB_FIXED_LAYOUT /* has contexts of its own */
#include <kerb/module.h>
#include <kerb/answer.h>
#include <kerb/scratch.h>
#include "maps.h"
#include "flow.h"
#include "hot.h"
#include "session.h"
#include "translate.h"
#include "icmp.h"
#include "fragment.h"
#include "handover.h"
#include "fast.h"
#include "unknown.h"

#define PX_DROP_HELD  KERB_DROP_MODULE_FIRST /* held by the control plane, which sends it again */
/* its interface has too many sessions without a reply */
#define PX_DROP_QUOTA (KERB_DROP_MODULE_FIRST + 1)
/* its source is a virtual address: others would take its sender for another instance */
#define PX_DROP_SPOOFED (KERB_DROP_MODULE_FIRST + 2)

/* A session that needs no update: its instance has not moved, and nothing begins or ends. */
static __always_inline int px_session_is_settled(const struct px_session *s, int tcp)
{
	struct px_instance *in;

	if (tcp & (KERB_TCP_SYN | KERB_TCP_FIN | KERB_TCP_RST) ||
	    s->tick != (__u32)(bpf_jiffies64() / PX_TICK))
		return 0;
	if (s->flags & PX_REVERSE)
		return s->state & PX_ANSWERED;
	in = bpf_map_lookup_elem(&instances, &s->instance);
	return in && in->generation == s->generation && !(in->flags & PX_GONE);
}

/* Fills w->flow and the other fields of w that describe the packet. Returns enum px_kind. */
static __always_inline int px_read_packet(struct kerb_pkt *pkt, struct px_work *w, __u32 hook)
{
	__u8 *flags;
	int kind;

	w->now = bpf_ktime_get_ns();
	w->v4 = pkt->family == 4;
	w->tcp = 0;
	w->state = 0;
	w->instance = 0;
	if (pkt->outcome || px_read_addresses(pkt, hook, &w->flow))
		return PX_NOTHING;
	if (hook == PX_EGRESS && px_is_spoofed(&w->flow))
		return PX_SPOOFED;
	if (pkt->flags & KERB_F_FRAG_LATER) {
		w->flow.sport = w->flow.dport = 0;
		px_fragment_follow(pkt, w);
		return PX_LATER;
	}
	kind = px_read_ports(pkt, pkt->l4, w);
	if (kind == PX_ERROR)
		return px_read_quoted(pkt, w);
	if (kind == PX_PLAIN && pkt->proto == IPPROTO_TCP) {
		flags = kerb_at(pkt, pkt->l4 + 13, 1);
		w->tcp = flags ? *flags : 0;
	}
	return kind;
}

/* Port at the instances; 0 if a port is required and not served. */
static __always_inline int px_port_is_served(struct px_work *w, const struct px_vip *v)
{
	struct px_port key = {.vip = v->id, .port = w->flow.dport, .proto = w->flow.proto};
	__be16 *port;

	w->target = w->flow.dport;
	if (w->kind == PX_ECHO || !(v->flags & PX_VIP_PORTS))
		return 1;
	port = bpf_map_lookup_elem(&ports, &key);
	if (port)
		w->target = *port;
	return port || (source_instance && v->flags & PX_VIP_ANSWERS && !px_is_new_connection(w));
}

/* PX_NAMED if the sender is an instance with a virtual address, on the interface that the packet
 * comes from. */
static __always_inline __u8 px_sender_is_named(const struct px_work *w)
{
	struct px_name *name =
		source_instance ? px_name_of(&w->flow.src, w->flow.ifindex) : 0;

	return name && !name->flags ? PX_NAMED : 0;
}

/* Handles a packet from the service that belongs to no session: one begins if it is for a virtual
 * address. If the instance is certain, from a hash or because there is only one, a connection whose
 * session is unknown may continue: with the client's last instance, if that is remembered. */
static __always_inline int px_session_begin(struct px_work *w)
{
	struct px_vip *v = bpf_map_lookup_elem(&vips, &w->flow.dst);
	int amid, answers;

	answers = source_instance && v && v->flags & PX_VIP_ANSWERS;
	/* what an error quotes may be forged: a session would let packets from there pass */
	if (w->kind == PX_ERROR && (!answers || px_is_spoofed(&w->flow)))
		return v ? PX_STRAY : PX_PASS;
	if (!v || (v->flags & PX_VIP_NEGATIVE && v->expires <= w->now)) {
		if (px_is_virtual(&w->flow.dst))
			return PX_UNKNOWN_ADDR;
		return px_may_be_first(w) ? px_direct_begin(w) : PX_PASS;
	}
	if (v->flags & PX_VIP_NEGATIVE)
		return PX_NO_ADDR;
	if (w->kind == PX_LATER)
		return PX_NO_FIRST;
	if (!answers && (px_is_echo_reply(w) || w->tcp & KERB_TCP_RST))
		return PX_STRAY;
	if (w->kind == PX_OTHER || !px_port_is_served(w, v))
		return PX_NO_PORT;
	v = px_vip_of_port(w, v);
	amid = px_is_midstream(w);
	if (amid && v->count > 1 && v->policy != PX_HASH_SOURCE && v->policy != PX_HASH_FLOW)
		return PX_NO_SESSION;
	px_choose(w, v);
	if (!kerb_reread(w->instance))
		return PX_NO_INSTANCE;
	if (v->flags & PX_VIP_TARGETS)
		px_target_port(w);
	w->flags =
		(v->flags & PX_VIP_PORTS && !(answers && w->tcp & KERB_TCP_ACK) ? PX_JUDGED : 0) |
		(v->flags & PX_VIP_AFFINITY ? PX_STICKY : 0) | px_sender_is_named(w);
	if (amid)
		px_count(PX_COUNT_RECOVERED);
	px_count(PX_COUNT_OPENED);
	return PX_ENROL;
}

/* Sets the key of the other entry, w->pair, to the reversed rewritten packet. */
static __noinline int px_pair_reverse(struct px_work *w)
{
	struct px_session *s = &w->made;
	struct px_name *name = px_client_name(&w->flow, s);

	if (!name || !px_changes_both(s) || !(s->flags & PX_FAR))
		return 0;
	w->pair.src = s->addr;
	w->pair.dst = name->other;
	return 0;
}

/* Later fragments and SCTP: the addresses are rewritten, and no checksum covers them. */
static __always_inline void px_translate(struct kerb_pkt *pkt, struct px_work *w,
					 const struct px_session *s)
{
	if (w->kind == PX_ERROR) {
		px_pair_key(&w->flow, s, &w->pair);
		if (px_is_named(s))
			px_pair_reverse(w);
		px_translate_error(pkt, w);
	} else if (w->kind == PX_ECHO) {
		px_translate_echo(pkt, s, px_is_echo_reply(w));
	} else if (w->kind == PX_PLAIN && pkt->proto != IPPROTO_SCTP) {
		px_translate_common(pkt, s);
	} else {
		px_change_addresses(pkt, s);
	}
}

static __always_inline int px_forward(struct kerb_pkt *pkt, struct px_work *w, __u32 hook)
{
	const struct px_session *s = &w->made;
	int verdict;

	if (pkt->flags & KERB_F_FRAG_FIRST)
		px_fragment_remember(pkt, w);
	verdict = hook == PX_EGRESS
			  ? px_neigh_redirect(pkt, px_dst_mac(pkt), px_target(&s->local, s->other))
			  : KERB_NEXT;
	if (px_changes_both(s) && kerb_reread(w->kind) != PX_ERROR && px_translate_client(pkt, w))
		return kerb_drop(pkt, KERB_DROP_STATE);
	px_translate(pkt, w, s);
	return verdict;
}

/* Handles a packet whose sender is to be notified. */
static __always_inline int px_reject(struct kerb_pkt *pkt, const struct px_work *w, int step)
{
	if (step == PX_RESET_IT ||
	    (w->flow.proto == IPPROTO_TCP && (step == PX_NO_SESSION || step == PX_NO_PORT)))
		return kerb_tcp_reset(pkt);
	return kerb_icmp_unreachable(pkt, step == PX_NO_PORT ? KERB_UNREACHABLE_PORT
							     : KERB_UNREACHABLE_HOST);
}

static __always_inline int px_count_drop(struct kerb_pkt *pkt, __u32 count, __u32 reason)
{
	px_count(count);
	return kerb_drop(pkt, reason);
}

static __always_inline int px_verdict_apply(struct kerb_pkt *pkt, struct px_work *w, __u32 step)
{
	switch (step) {
	case PX_STRAY:
		return kerb_drop(pkt, KERB_DROP_STATE);
	case PX_OVER_QUOTA:
		return px_count_drop(pkt, PX_COUNT_OVER_QUOTA, PX_DROP_QUOTA);
	case PX_FULL:
		return px_count_drop(pkt, PX_COUNT_TABLE_FULL, KERB_DROP_TABLE_FULL);
	case PX_NO_FIRST:
		return px_count_drop(pkt, PX_COUNT_FRAGMENT, KERB_DROP_FRAGMENT);
	case PX_UNKNOWN_ADDR:
		if (!px_request_send(pkt, w))
			return px_count_drop(pkt, PX_COUNT_UNKNOWN, PX_DROP_HELD);
		return px_count_drop(pkt, PX_COUNT_UNANSWERED, KERB_DROP_NO_ROUTE);
	case PX_NO_ADDR:
		px_count(PX_COUNT_NEGATIVE);
		break;
	case PX_NO_INSTANCE:
		px_count(PX_COUNT_NO_INSTANCE);
		break;
	case PX_NO_PORT:
		px_count(PX_COUNT_NO_PORT);
		break;
	case PX_NO_SESSION:
		px_count(PX_COUNT_NO_SESSION);
		break;
	case PX_RESET_IT:
		break;
	default:
		return KERB_NEXT;
	}
	return px_reject(pkt, w, kerb_reread(w->step));
}

/* Copies the packet's session to w->made: the verifier need not know which table it is from.
 * Returns whether there is one. */
static __noinline int px_session_find(struct px_work *w)
{
	struct px_session *s = bpf_map_lookup_elem(&sessions, &w->flow);

	w->kept = s != 0;
	if (!s)
		s = bpf_map_lookup_elem(&pending, &w->flow);
	if (!s)
		return 0;
	if (s->flags & PX_NAMED && !source_instance) { /* of another config */
		bpf_map_delete_elem(&sessions, &w->flow);
		bpf_map_delete_elem(&pending, &w->flow);
		return 0;
	}
	w->made = *s;
	return 1;
}

/* Finds the session that an ICMP error of the node's own stack is about: the stack had a packet for
 * an instance of this node, whose replies are seen on its interface, and notifies the client, which
 * is seen here. */
static __always_inline int px_session_find_local(struct px_work *w)
{
	__u32 *home = bpf_map_lookup_elem(&homes, &w->flow.src), client = w->flow.ifindex;

	if (!home)
		return 0;
	w->flow.ifindex = *home;
	w->flow.hook = PX_EGRESS;
	return px_session_find(w) && w->made.flags & PX_REVERSE && w->made.other == client;
}

/* The same for an error from this node about a packet for another one, whose source has been
 * replaced by its name. */
static __always_inline int px_session_find_named(struct px_work *w)
{
	struct px_name *name = px_name_of(&w->flow.dst, w->flow.ifindex);

	if (!name)
		return 0;
	w->flow.dst = name->other;
	name = px_name_of(&w->flow.src, 0);
	if (name)
		w->flow.src = name->other;
	return px_session_find(w) && w->made.flags & PX_NAMED;
}

/* Determines the step, without changing the packet. */
static __always_inline void px_decide(struct px_work *w, __u32 hook)
{
	int found = px_session_find(w);

	if (!found && hook == PX_INGRESS && kerb_reread(w->kind) == PX_ERROR)
		found = px_session_find_local(w) ||
			(source_instance && px_session_find_named(w));
	w->step = PX_RESELECT;
	if (found)
		px_session_packet(w);
	if (kerb_reread(w->step) == PX_RESELECT)
		w->step = hook == PX_EGRESS ? px_session_begin(w) : PX_PASS;
	if (kerb_reread(w->step) == PX_ENROL)
		w->step = px_session_create(w);
}

static __always_inline int px_process_uncommon(struct kerb_pkt *pkt, struct px_work *w, __u32 hook)
{
	w->kind = px_read_packet(pkt, w, hook);
	kerb_forget(pkt);
	if (kerb_reread(w->kind) >= PX_SPOOFED)
		return kerb_reread(w->kind) == PX_SPOOFED ? kerb_drop(pkt, PX_DROP_SPOOFED)
							  : KERB_NEXT;
	px_decide(w, hook);
	if (kerb_reread(w->step) == PX_GO)
		return px_forward(pkt, w, hook);
	return px_verdict_apply(pkt, w, kerb_reread(w->step));
}

/* Handles all uncommon packets. A global function, so that the verifier examines it separately, and
 * once. It takes only the context and numbers; the parser's results are in the work. */
__noinline int px_uncommon(kerb_ctx *ctx, __u32 hook)
{
	struct px_work *w = px_work();
	struct kerb_pkt pkt;
	int verdict;

	if (!w)
		return KERB_NEXT;
	__builtin_memcpy(&pkt.l3, &w->head, sizeof(w->head));
	pkt.ctx = ctx;
	kerb_reload(&pkt);
	verdict = px_process_uncommon(&pkt, w, hook);
	__builtin_memcpy(w->head.became, &pkt.l4_len, sizeof(w->head.became));
	return verdict;
}

/* Passes the packet to it, and returns the result. Out of line, see px_scratch_enter(). */
static __noinline int px_call_uncommon(struct kerb_pkt *pkt, __u32 hook)
{
	struct px_work *w = px_work();
	int verdict;

	if (!w)
		return KERB_NEXT;
	__builtin_memcpy(&w->head, &pkt->l3, sizeof(w->head));
	verdict = px_uncommon(pkt->ctx, hook);
	__builtin_memcpy(&pkt->l4_len, w->head.became, sizeof(w->head.became));
	if (w->kind < PX_SPOOFED && w->step == PX_GO && w->made.instance)
		kerb_note(pkt, PX_NOTE_INSTANCE, w->made.instance);
	return verdict;
}

/* Returns whether a packet from the service without a session may begin one, or its address is to
 * be requested. tcp: its flags. */
static __always_inline int px_may_begin(const struct px_flow *f, int tcp)
{
	return (tcp & (KERB_TCP_SYN | KERB_TCP_ACK)) == KERB_TCP_SYN ||
	       bpf_map_lookup_elem(&vips, &f->dst) || px_is_virtual(&f->dst);
}

/* Handles the common packets: those of settled sessions, and those that the proxy ignores. Returns
 * -1 for the rest. */
static __always_inline int px_process_common(struct kerb_pkt *pkt, __u32 hook)
{
	const struct px_session *s;
	struct px_warm warm;
	struct px_flow flow;
	int tcp, verdict, kept;

	if (!px_is_common(pkt))
		return -1;
	tcp = px_read_common(pkt, hook, &flow);
	if (tcp < 0)
		return KERB_NEXT;
	px_hot_refresh(&flow, &warm);
	if (hook == PX_EGRESS && px_hot_is_direct(&flow, pkt->family, &warm))
		return px_may_begin(&flow, tcp) ? -1 : KERB_NEXT;
	s = bpf_map_lookup_elem(&sessions, &flow);
	kept = s != 0;
	warm.age = PX_HOT_AGE(kept);
	if (!s)
		s = bpf_map_lookup_elem(&pending, &flow);
	if (!s)
		return hook == PX_EGRESS && (px_may_begin(&flow, tcp) || px_is_spoofed(&flow) ||
					     px_is_ambiguous(&flow, pkt->family, &warm))
			       ? -1
			       : KERB_NEXT;
	if (!px_session_is_settled(s, tcp) || (s->flags & PX_NAMED && !source_instance))
		return -1;
	if ((px_hot_store(&flow, pkt->family, &warm, s) || !kept) && !px_has_pair(&flow, s))
		return -1; /* creates it again, before the reply arrives */
	if (px_changes_both(s))
		return -1; /* until there is a copy */
	verdict = hook == PX_EGRESS
			  ? px_neigh_redirect(pkt, px_dst_mac(pkt), px_target(&s->local, s->other))
			  : KERB_NEXT;
	px_translate_common(pkt, s);
	return verdict;
}

/* What px_common needs to know about the packet, as arguments: a global function takes only the
 * context and numbers. The verifier then examines it separately, once, and not once for each of the
 * hundred or so paths through the parser. */
#define PX_WHERE(pkt) ((__u32)(pkt)->l3 | (__u32)(pkt)->l4 << 16)
/* One byte at a time: the compiler would read two at once that the parser has just written one by
 * one, and such a read stalls until they have reached the cache. */
#define PX_WHAT(pkt)                                                          \
	(kerb_reread((pkt)->family) | (__u32)kerb_reread((pkt)->proto) << 8 | \
	 (__u32)kerb_reread((pkt)->flags) << 16)

/* Returns a verdict, or -1, in the lower half; for KERB_REDIRECT the flags in bits 8-15 and the
 * target in the upper half. */
__noinline __u64 px_common(kerb_ctx *ctx, __u32 where, __u32 what, __u32 vlan, __u32 hook)
{
	struct kerb_pkt pkt = { .ctx = ctx,
				.l3 = where & 0xffff,
				.l4 = where >> 16,
				.vlan = vlan,
				.family = what,
				.proto = what >> 8,
				.flags = what >> 16,
				.ifindex = kerb_ctx_field(ctx, ifindex) };
	int verdict;

	kerb_reload(&pkt);
	verdict = px_process_common(&pkt, hook);
	return (__u64)pkt.to_ifindex << 32 | pkt.to_flags << 8 | (__u8)verdict;
}

static __always_inline int px_process(struct kerb_pkt *pkt, __u32 hook)
{
	__u64 result;
	int verdict;

	verdict = px_fast_path(pkt, hook);
	if (verdict >= 0) {
		kerb_reload(pkt);
		return verdict;
	}
	result = px_common(pkt->ctx, PX_WHERE(pkt), PX_WHAT(pkt), pkt->vlan, hook);
	verdict = (__s8)result;
	if (verdict == KERB_REDIRECT) {
		pkt->to_ifindex = result >> 32;
		pkt->to_flags = result >> 8 & 0xff;
	} else if (verdict < 0) {
		verdict = px_call_uncommon(pkt, hook);
	}
	kerb_reload(pkt);
	return verdict;
}

/* Out of line: the chain would call an entry of more than 512 instructions instead of inlining
 * it. */
static __noinline int px_scratch_enter(void)
{
	return kerb_scratch_enter();
}

static __noinline int px_scratch_leave(void)
{
	kerb_scratch_leave();
	return 0;
}

/* Packets that could not be parsed completely are not translated, such as IPv6 with too many
 * extension headers, but other modules may read them. */
static __noinline int px_process_unparsed(struct kerb_pkt *pkt)
{
	struct px_flow flow;

	if (!pkt->family || px_read_addresses(pkt, PX_EGRESS, &flow) || !px_is_spoofed(&flow))
		return KERB_NEXT;
	return kerb_drop(pkt, PX_DROP_SPOOFED);
}

/* Copies of sessions and the work space belong to the CPU. A packet that interrupts another one
 * there is dropped: if passed, it would have the wrong address. */
static __always_inline int px_run(struct kerb_pkt *pkt, __u32 hook)
{
	int verdict;

	if (pkt->outcome)
		return source_instance && hook == PX_EGRESS ? px_process_unparsed(pkt) : KERB_NEXT;
	if (kerb_preemptible && !px_scratch_enter())
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	verdict = px_process(pkt, hook);
	if (kerb_preemptible)
		px_scratch_leave();
	return verdict;
}

KERB_EGRESS(pkt)
{
	return px_run(pkt, PX_EGRESS);
}

KERB_INGRESS(pkt)
{
	return px_run(pkt, PX_INGRESS);
}

KERB_LICENSE("Dual BSD/GPL");
