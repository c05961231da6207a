// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

//go:build ignore

/* The firewall: packets of known connections pass, the first matching rule decides on all others,
 * otherwise the default policy of the direction. control.go fills the maps, compile.go builds the
 * search tree, model_test.go is the same in Go. */
#define KERB_FIXED_LAYOUT /* shipped with the linker; relocations take 8 bytes of stack */
#include <kerb/module.h>
#include <kerb/scratch.h>
#include "audit.h"
#include "flow.h"
#include "classify.h"
#include "set.h"
#include "state.h"
#include "fragment.h"
#include "icmp.h"
#include "link.h"
#include "spoof.h"
#include "offload.h"
#include "reject.h"
#include "limit.h"
#include "log.h"

KERB_CONFIG(_Bool, allow_extensions, 1);
KERB_CONFIG(_Bool, allow_malformed, 0);

/* Packet counters by deciding element: the slots below, then one per rule (control.go assigns
 * them). */
enum fw_slot {
	FW_SLOT_EGRESS = 0,  /* default policy */
	FW_SLOT_INGRESS = 1,
	FW_SLOT_TRACKED = 2, /* of a known connection */
	FW_SLOT_RELATED = 3, /* ICMP error about one */
	FW_SLOT_LINK = 4,    /* control protocol of the link */
	FW_SLOT_NON_IP = 5,
	FW_SLOT_MALFORMED = 6,
	FW_SLOT_EXTENSION = 7,
	FW_SLOT_FRAGMENT = 8, /* fragments: dropped, all or those without a first one */
	FW_SLOT_FRAGMENT_NEXT = 9, /* fragments that passed by the fragment policy */
	FW_SLOT_FULL = 10,
	FW_SLOT_REVOKED = 11, /* of a connection that a new rule set ended */
	FW_SLOT_SPOOFED = 12, /* a sender address that is not the service's */
	FW_SLOT_OFFLOAD = 13, /* the checksum would overwrite evaluated bytes */
	/* control protocol with a router's or server's role, or in a form that hides it */
	FW_SLOT_LINK_DENIED = 14,
	/* TCP that fits no connection, or flags that no TCP implementation combines */
	FW_SLOT_INVALID = 15,
	FW_SLOT_RULES = 16,
};

/* The firewall's own drop reasons; the manifest has their names. */
enum fw_drop {
	FW_DROP_SPOOFED = KERB_DROP_MODULE_FIRST,
	FW_DROP_BAD_OFFLOAD,
	FW_DROP_LINK_CONTROL,
	FW_DROP_INVALID_STATE,
	FW_DROP_INVALID_FLAGS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FW_SLOTS);
	__type(key, __u32);
	__type(value, struct fw_hits);
} hits SEC(".maps");

/* The rule that a slot belongs to; used only by control.go, and stored here so that it survives
 * together with the hits. */
struct fw_owner {
	__u64 rule; /* hash of the rule's identity, 0: free */
	__u64 fill; /* number of the last rule set that had it */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FW_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct fw_owner);
} owners SEC(".maps");

static __always_inline int fw_drop(struct kerb_pkt *pkt, __u32 decision)
{
	__u32 reason = decision >> 16 & 0xff;

	if (audit) {
		fw_count(&would_drop, reason, pkt);
		return KERB_NEXT;
	}
	if (decision & FW_REJECT && fw_reject(pkt) == KERB_REPLY)
		return KERB_REPLY;
	return kerb_drop_noted(pkt, reason, FW_NOTE_RULE, decision & 0xffff);
}

static __always_inline int fw_verdict_apply(struct kerb_pkt *pkt, __u32 decision)
{
	fw_count(&hits, decision & 0xffff, pkt);
	if (decision != FW_SLOT_TRACKED)
		kerb_note(pkt, FW_NOTE_RULE, decision & 0xffff);
	return decision >> 16 ? fw_drop(pkt, decision) : KERB_NEXT;
}

static __always_inline int fw_conn_lookup(struct fw_flow *f, __u64 now)
{
	if (f->family == 4)
		return fw_track(&established4, &opening4, &pending4, f, now);
	return fw_track(&established6, &opening6, &pending6, f, now);
}

static __always_inline int fw_is_related(struct fw_flow *f, __u64 now)
{
	if (f->family == 4)
		return fw_conn_is_alive(&established4, &opening4, &pending4, f, now);
	return fw_conn_is_alive(&established6, &opening6, &pending6, f, now);
}

static __always_inline void fw_conn_begin(struct fw_flow *f, __u64 now)
{
	if (f->family == 4)
		fw_conn_create(&opening4, &pending4, now);
	else
		fw_conn_create(&opening6, &pending6, now);
}

static __always_inline void fw_conn_update(struct fw_flow *f, int stays)
{
	if (f->family == 4)
		fw_conn_renew(&established4, &opening4, &pending4, stays);
	else
		fw_conn_renew(&established6, &opening6, &pending6, stays);
}

/* Evaluates the rules for the packet, or for the packet that it answers. */
static __always_inline __u32 fw_evaluate_rules(struct fw_flow *f)
{
	const struct fw_values *v = fw_values(f);
	__u32 decision;

	if (!v)
		return FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_MALFORMED);
	decision = fw_classify(f, v);
	if (decision == FW_LOST)
		return FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_MALFORMED);
	if (decision != FW_NO_RULE)
		return decision & FW_LIMIT ? fw_limit_apply(decision) : decision;
	if (f->asked == FW_EGRESS)
		return v->allow_egress ? FW_SLOT_EGRESS : FW_DENY(FW_SLOT_EGRESS, KERB_DROP_POLICY);
	return v->allow_ingress ? FW_SLOT_INGRESS : FW_DENY(FW_SLOT_INGRESS, KERB_DROP_POLICY);
}

/* The verdict on a packet without a known connection. */
static __always_inline __u32 fw_admit(struct fw_flow *f, __u32 decision, __u64 now)
{
	if (decision >> 16 && !audit)
		return decision;
	if (decision >> 16) {
		f->generation = ~f->generation;
		/* in midstream as in fw_may_pick_up(): what the service sends belongs to a
		 * connection */
		if (f->begins == FW_BEGINS || (f->begins && f->dir == FW_EGRESS))
			fw_conn_begin(f, now);
		return decision;
	}
	if (fw_is_midstream(f, now))
		return FW_DENY(FW_SLOT_INVALID, FW_DROP_INVALID_STATE);
	if (f->begins)
		fw_conn_begin(f, now);
	return decision;
}

/* The verdict of the rules combined with the state of the connection. */
static __always_inline __u32 fw_decision_apply_state(struct fw_flow *f, __u32 decision, __u64 now)
{
	if (!state)
		return decision;
	if (f->stale == FW_UNKNOWN)
		return f->quoting ? decision : fw_admit(f, decision, now);
	if (audit && decision >> 16)
		f->generation = ~f->generation;
	fw_conn_update(f, audit || !(decision >> 16));
	if (f->stale == FW_STALE)
		return decision;
	return decision >> 16 ? FW_DENY(FW_SLOT_REVOKED, KERB_DROP_STATE) : FW_SLOT_TRACKED;
}

/* Decides on the packet in the scratch map, with FW_LOG if it is to be reported. Takes only the
 * time as an argument: see fw_forget_packet. */
static __noinline __u32 fw_evaluate_flow(__u64 now)
{
	struct fw_flow *f = fw_flow();
	int track = FW_UNKNOWN;
	__u32 decision;

	if (!f)
		return FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_NO_MEMORY);
	if (state) {
		f->now = now;
		if (state == FW_TRACKING_SETS)
			f->generation += kerb_sets_version(&f->set_id) * 0x9e3779b1;
		fw_bind_generation(f);
		if (f->quoting) {
			if (fw_is_related(f, now))
				return FW_SLOT_RELATED;
		} else if (f->kind < FW_ERROR) {
			track = kerb_through(f->hidden, fw_conn_lookup(f, now));
		}
		if (track == FW_TRACKED)
			return FW_SLOT_TRACKED;
		if (track == FW_INVALID)
			return FW_DENY(FW_SLOT_INVALID, FW_DROP_INVALID_STATE);
		if (track == FW_FULL)
			return FW_DENY(FW_SLOT_FULL, KERB_DROP_TABLE_FULL);
	}
	f->stale = track;
	f->asked = f->dir;
	if (track == FW_STALE_ANSWER)
		fw_reverse(f);
	kerb_opaque(f); /* a variable of its own: the compiler may have this one in memory */
	decision = fw_evaluate_rules(f);
	return fw_decision_apply_state(f, decision & ~FW_LOG, now) | (decision & FW_LOG);
}

/* Evaluates packets that could not be parsed. */
static __always_inline __u32 fw_evaluate_unparsed(const struct kerb_pkt *pkt)
{
	if (pkt->outcome == KERB_PARSE_NOT_IP) {
		int allow = allow_non_ip || fw_ether_type_listed(pkt->eth_type);

		return allow ? FW_SLOT_NON_IP : FW_DENY(FW_SLOT_NON_IP, KERB_DROP_POLICY);
	}
	return allow_malformed ? FW_SLOT_MALFORMED
			       : FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_MALFORMED);
}

static __always_inline __u32 fw_evaluate_later_fragment(const struct kerb_pkt *pkt, __u32 dir)
{
	if (fragments == FW_FRAGMENTS_ALLOW || fw_fragment_known(pkt, dir, fw_now()))
		return FW_SLOT_FRAGMENT_NEXT;
	return FW_DENY(FW_SLOT_FRAGMENT, KERB_DROP_FRAGMENT);
}

/* Without this, the verifier would follow the search, and all subsequent modules, once for each of
 * the hundred or so paths through the parser. */
static __always_inline void fw_forget_packet(struct kerb_pkt *pkt, const struct fw_flow *f)
{
	__u64 zero = kerb_reread(f->zero);

	kerb_mix(pkt, zero);
}

/* Exceptions: packets that pass although the rules deny them. */
static __always_inline __u32 fw_exception_apply(struct kerb_pkt *pkt, struct fw_flow *f,
						__u32 decision)
{
	if (state && f->dir == FW_INGRESS && fw_is_dhcp_reply(f) && fw_dhcp_expected(pkt, f->now))
		return FW_SLOT_RELATED;
	return !audit && fw_answer_take(pkt, f) ? FW_SLOT_RELATED : decision;
}

/* The final decision on packets that the rules deny or report. */
static __noinline __u32 fw_decision_finish(struct kerb_pkt *pkt, struct fw_flow *f, __u32 decision)
{
	__u32 log = decision & FW_LOG;

	decision &= ~FW_LOG;
	if (decision >> 16)
		decision = fw_exception_apply(pkt, f, decision);
	else if (state && f->dir == FW_EGRESS && fw_is_dhcp_request(f))
		fw_dhcp_requested(pkt, f->now);
	if (log)
		fw_log(decision);
	return kerb_through(f->hidden, decision);
}

static __always_inline __u32 fw_evaluate(struct kerb_pkt *pkt, struct fw_flow *f, __u32 dir)
{
	__u32 decision;
	__u64 now;

	if (fw_read(pkt, f, dir))
		return FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_MALFORMED);
	if (link_control && dir == FW_EGRESS && fw_is_dhcp_reply(f))
		return FW_DENY(FW_SLOT_LINK_DENIED, FW_DROP_LINK_CONTROL);
	if (!allow_malformed && pkt->proto == IPPROTO_TCP && pkt->flags & KERB_F_L4 &&
	    !fw_tcp_flags_valid(f->tcp))
		return FW_DENY(FW_SLOT_INVALID, FW_DROP_INVALID_FLAGS);
	if (f->kind == FW_ERROR)
		fw_read_quoted(pkt, f);
	kerb_reload(pkt);
	now = state ? fw_now() : 0;
	decision = kerb_through(f->hidden, fw_evaluate_flow(now));
	if (decision >> 16)
		return fw_decision_finish(pkt, f, decision);
	if (state && dir == FW_EGRESS && fw_is_dhcp_request(f))
		fw_dhcp_requested(pkt, now);
	return decision;
}

/* Decides on packets whose Ethernet, ARP or ICMPv6 headers are sufficient; returns 0 for all
 * others. */
static __noinline __u32 fw_evaluate_link(struct kerb_pkt *pkt, __u32 dir)
{
	int link = FW_LINK_NONE;

	if (fw_is_reserved_group(pkt) &&
	    !(pkt->outcome == KERB_PARSE_NOT_IP && fw_ether_type_listed(pkt->eth_type)))
		return FW_DENY(FW_SLOT_LINK_DENIED, FW_DROP_LINK_CONTROL);
	if (fw_bad_offload(pkt))
		return FW_DENY(FW_SLOT_OFFLOAD, FW_DROP_BAD_OFFLOAD);
	if (anti_spoof && dir == FW_EGRESS && !fw_is_own(pkt))
		return FW_DENY(FW_SLOT_SPOOFED, FW_DROP_SPOOFED);
	if (link_control && !pkt->outcome && !(pkt->flags & KERB_F_FRAG_LATER))
		link = fw_link(pkt, dir);
	if (link == FW_LINK_DROP)
		return FW_DENY(FW_SLOT_LINK_DENIED, FW_DROP_LINK_CONTROL);
	return link == FW_LINK_PASS ? FW_SLOT_LINK : 0;
}

static __always_inline __u32 fw_decide(struct kerb_pkt *pkt, __u32 dir)
{
	struct fw_flow *f = fw_flow();
	__u32 decision;

	if (!f)
		return FW_DENY(FW_SLOT_MALFORMED, KERB_DROP_NO_MEMORY);
	fw_choose_values(f);
	fw_forget_packet(pkt, f);
	decision = fw_evaluate_link(pkt, dir);
	fw_forget_packet(pkt, f);
	if (decision)
		return decision;
	if (pkt->outcome)
		return fw_evaluate_unparsed(pkt);
	if (!allow_extensions && pkt->flags & KERB_F_EXT)
		return FW_DENY(FW_SLOT_EXTENSION, KERB_DROP_EXTENSION);
	if (pkt->flags & KERB_F_FRAG && fragments == FW_FRAGMENTS_DENY)
		return FW_DENY(FW_SLOT_FRAGMENT, KERB_DROP_FRAGMENT);
	if (pkt->flags & KERB_F_FRAG_LATER)
		return fw_evaluate_later_fragment(pkt, dir);
	decision = fw_evaluate(pkt, f, dir);
	if (pkt->flags & KERB_F_FRAG_FIRST && fragments == FW_FRAGMENTS_TRACK && !(decision >> 16))
		fw_fragment_remember(pkt, dir, fw_now());
	return decision;
}

static __always_inline int fw_filter(struct kerb_pkt *pkt, __u32 dir)
{
	int verdict;

	if (!kerb_scratch_enter())
		return fw_drop(pkt, FW_DENY(0, KERB_DROP_NO_MEMORY));
	verdict = fw_verdict_apply(pkt, fw_decide(pkt, dir));
	kerb_scratch_leave();
	return verdict;
}

KERB_EGRESS(pkt)
{
	return fw_filter(pkt, FW_EGRESS);
}

KERB_INGRESS(pkt)
{
	return fw_filter(pkt, FW_INGRESS);
}

KERB_LICENSE("Dual BSD/GPL");
