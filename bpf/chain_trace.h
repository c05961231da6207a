/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Traces: a packet is matched once at the head of a chain that the agent links for a trace, keeps
 * its number over all chains of this node, and leaves an event after each module. Chains without a
 * trace contain nothing of it. */
#ifndef KERB_CHAIN_TRACE_H
#define KERB_CHAIN_TRACE_H

/* Traces that may run at the same time. */
#define KERB_TRACE_SESSIONS 4

/* What a session of `kerb trace` looks for; a zero stands for anything. Written by the agent. */
struct kerb_trace_filter {
	__u8 addr[16]; /* source or destination; IPv4 in the first four bytes */
	__u8 mask[16]; /* of addr: its other bits are zero */
	__u8 family;   /* of addr: 4, 6, or 0 */
	__u8 proto;
	__u16 port;  /* source or destination, host byte order */
	__u32 bytes; /* of each packet that are reported, at most KERB_TRACE_BYTES */
	__u64 lost;  /* events for which the ring buffer had no room */
	__u64 active;
};

/* position of a packet's first event: as it came in, before any module */
#define KERB_TRACE_HEAD 0xff

/* Of a packet; enough for the headers of a tunnel and of what it carries. */
#define KERB_TRACE_BYTES 256

/* A packet at the head of the chain, or after a module's verdict. Bytes of the packet follow the
 * former. */
struct kerb_trace_event {
	__u64 time;    /* ns, CLOCK_MONOTONIC */
	__u64 packet;  /* number of the packet on its CPU */
	__u64 elapsed; /* ns since the event before was written: the module's */
	__u64 note;    /* of the module (kerb_note), 0: none */
	__u64 trace;   /* the packet's, at each chain that it meets */
	__u32 ifindex;
	__u32 len;
	__u32 chain;	  /* number that the agent gave to the chain */
	__u32 to_ifindex; /* of KERB_REDIRECT */
	__u16 cpu;
	__u16 sport, dport; /* host byte order; 0 without ports */
	__u8 position;
	__u8 verdict;
	__u8 reason;
	__u8 outcome;
	__u8 family;
	__u8 proto;
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 to_flags; /* KERB_TO_* */
	__u8 saddr[16], daddr[16];
};

/* The packet that a CPU's chain is working on. Not on the stack of the chain, as parts of a split
 * chain do not share it. */
struct kerb_traced {
	__u64 packets; /* so far */
	__u64 wanted;  /* sessions whose filter matched the last of them, bits */
	__u64 where;   /* trace_where of the last of them */
	__u64 written; /* ns, CLOCK_MONOTONIC: when its last event was */
	__u64 first;   /* point at which its trace began: interface and chain */
	__u64 key;     /* trace_key under which it was left for the next chain */
	struct kerb_trace_event head;
	__u8 bytes[KERB_TRACE_BYTES]; /* behind head */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__type(value, struct kerb_trace_filter);
} kerb_filter SEC(".maps");

/* The sessions that are about an interface, bits; without an entry all of them. Written by the
 * agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} kerb_trace_at SEC(".maps");

/* Each session has a ring of its own: one that is slow to read loses its own events. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_RINGBUF);
			__uint(max_entries, 1 << 20);
		});
} kerb_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_traced);
} kerb_traced SEC(".maps");

/* A packet that has passed a traced chain, by trace_key: its next chain on this node knows it by
 * that, whatever a module has made of its addresses. Nothing of the packet is changed for it.
 * Written by traced chains; when it is full, packets that passed long ago are forgotten. */
struct kerb_followed {
	__u64 trace;
	__u64 time;	   /* ns, CLOCK_MONOTONIC */
	__u64 sessions;	   /* that want it, bits */
	__u64 first, last; /* points at which its trace began, and where it was last */
};

#define KERB_FOLLOWED_TIME (1000 * 1000 * 1000ULL) /* ns between two chains */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct kerb_followed);
} kerb_followed SEC(".maps");

/* Where things are in the packet, in one number, so that kerb_trace_event takes numbers only. */
union trace_where {
	struct {
		__u16 l3, l4;
		__u8 family, proto, flags, outcome;
	};
	__u64 all;
};

/* The packet context of a traced chain, and what the module noted (internal/dataplane/notes.go) */
struct kerb_noted_pkt {
	struct kerb_pkt pkt;
	__u64 note;
};

union trace_what {
	struct {
		__u32 to_ifindex;
		__u16 chain;
		__u8 position, reason;
	};
	__u64 all;
};

/* Reads what a module may have made of the headers. l4 is right as long as nothing was put before
 * it; else it is worked out. */
static __always_inline __u32 trace_ip(const void *data, const void *end, union trace_where w,
				      __u32 l4, struct kerb_trace_event *e)
{
	const void *l3 = data + (w.l3 & KERB_MAX_HDRS);
	const struct ipv6hdr *ip6 = l3;
	const struct iphdr *ip4 = l3;

	if (!w.family || l3 + sizeof(*ip4) > end)
		return 0;
	if (ip4->version == 4) {
		e->family = 4;
		e->proto = ip4->protocol;
		__builtin_memcpy(e->saddr, &ip4->saddr, 4);
		__builtin_memcpy(e->daddr, &ip4->daddr, 4);
		if (ip4->frag_off & bpf_htons(0x1fff))
			return 0;
		return w.family == 4 && w.proto == e->proto ? l4 : w.l3 + ip4->ihl * 4;
	}
	if (ip4->version != 6 || l3 + sizeof(*ip6) > end)
		return 0;
	e->family = 6;
	e->proto = w.family == 6 ? w.proto : ip6->nexthdr;
	__builtin_memcpy(e->saddr, &ip6->saddr, 16);
	__builtin_memcpy(e->daddr, &ip6->daddr, 16);
	return w.family == 6 ? l4 : w.l3 + sizeof(*ip6);
}

static __always_inline void trace_l4(const void *data, const void *end, __u32 off,
				     struct kerb_trace_event *e)
{
	const void *l4 = data + (off & KERB_MAX_HDRS);
	const __u8 *byte = l4;

	if (!off || l4 + 8 > end)
		return;
	if (e->proto == IPPROTO_ICMP || e->proto == IPPROTO_ICMPV6) {
		e->icmp_type = byte[0];
		e->icmp_code = byte[1];
	}
	if (e->proto != IPPROTO_TCP && e->proto != IPPROTO_UDP)
		return;
	e->sport = bpf_ntohs(*(__u16 *)l4);
	e->dport = bpf_ntohs(*(__u16 *)(l4 + 2));
	if (e->proto == IPPROTO_TCP && l4 + 14 <= end)
		e->tcp_flags = byte[13];
}

static __always_inline __u64 trace_mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

#define KERB_KEY_PAYLOAD 48 /* bytes: of a tunnel, up to the TCP header inside */

/* What tells a packet apart from others on this node while it is on its way, 0 if nothing does: the
 * addresses and ports that it has now, and what neither forwarding nor offloads change. off: of the
 * transport header, or 0. */
static __always_inline __u64 trace_key(const void *data, const void *end, union trace_where w,
				       __u32 off, const struct kerb_trace_event *e)
{
	const struct iphdr *ip4 = data + (w.l3 & KERB_MAX_HDRS);
	const __u64 *s = (const void *)e->saddr, *d = (const void *)e->daddr;
	const void *l4 = data + (off & KERB_MAX_HDRS);
	__u64 hash = (__u64)e->proto << 32 | (__u32)e->sport << 16 | e->dport;

	if (!e->family || (e->family != 4 && !off))
		return 0;
	hash = trace_mix(trace_mix(hash, s[0]), s[1]);
	hash = trace_mix(trace_mix(hash, d[0]), d[1]);
	if (e->family == 4 && (const void *)(ip4 + 1) <= end)
		hash = trace_mix(hash, (__u32)ip4->id << 16 | (ip4->frag_off & bpf_htons(0x3fff)));
	if (!off || l4 + 12 > end)
		return hash | 1;
	hash = trace_mix(hash, *(const __u32 *)(l4 + 4)); /* sequence number, length, identifier */
	if (e->proto == IPPROTO_TCP)
		return trace_mix(hash, *(const __u32 *)(l4 + 8)) | 1;
#pragma clang loop unroll(full)
	for (__u32 i = 8; i < 8 + KERB_KEY_PAYLOAD; i += 8)
		if (l4 + i + 8 <= end)
			hash = trace_mix(hash, *(const __u64 *)(l4 + i));
	return hash | 1;
}

static __always_inline int same_prefix(const struct kerb_trace_filter *f, const __u8 *addr)
{
	const __u64 *want = (const void *)f->addr, *mask = (const void *)f->mask,
		    *have = (const void *)addr;

	return (have[0] & mask[0]) == want[0] && (have[1] & mask[1]) == want[1];
}

static __always_inline int trace_wanted(const struct kerb_trace_filter *f,
					const struct kerb_trace_event *e)
{
	if (f->proto && f->proto != e->proto)
		return 0;
	if (f->port && f->port != e->sport && f->port != e->dport)
		return 0;
	if (f->family && f->family != e->family)
		return 0;
	return !f->family || same_prefix(f, e->saddr) || same_prefix(f, e->daddr);
}

/* Whether a frame matches the expression of a session, which the linker puts here if there is one
 * (internal/dataplane/expression.go). */
__noinline int kerb_trace_matches(kerb_ctx *ctx, __u32 session)
{
	int matches = 1;

	kerb_opaque2(ctx, matches); /* else the compiler passes no context, and removes the call */
	kerb_opaque(session);
	return matches;
}

/* Whether a session wants the packet of kerb_traced. Takes numbers and the hook's context only, as
 * kerb_trace_event does. */
__noinline int kerb_trace_wants(kerb_ctx *ctx, __u32 session)
{
	__u32 zero = 0, i = session;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	const struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_filter, &i);

	if (!packet || !f || !f->active || !trace_wanted(f, &packet->head))
		return 0;
	return kerb_trace_matches(ctx, session) != 0;
}

/* Writes the event of kerb_traced to the ring of a session, with the first bytes of the packet. A
 * session whose ring has no room misses the rest of the packet, which would be shown without this
 * event. */
__noinline int kerb_trace_write(__u32 session, __u32 bytes)
{
	__u32 zero = 0, i = session;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_filter, &i);
	void *ring = bpf_map_lookup_elem(&kerb_events, &i);

	if (!packet || !f || !(packet->wanted >> (session & 63) & 1))
		return 0;
	if (bytes > f->bytes)
		bytes = f->bytes;
	if (bytes > KERB_TRACE_BYTES)
		return 0;
	if (ring && !bpf_ringbuf_output(ring, &packet->head, sizeof(packet->head) + bytes, 0))
		return 0;
	__sync_fetch_and_add(&f->lost, 1);
	packet->wanted &= ~(1ULL << (session & 63));
	return 0;
}

/* Begins the trace of a packet at the head of a chain, or continues it. One that is where its
 * trace began, or was last, is another packet with the same contents. Returns the sessions that
 * wanted it. */
static __always_inline __u64 trace_begin(struct kerb_traced *packet, __u64 key, __u64 here)
{
	struct kerb_trace_event *e = &packet->head;
	const struct kerb_followed *f = key ? bpf_map_lookup_elem(&kerb_followed, &key) : 0;

	packet->packets += 1;
	packet->key = 0;
	if (f && f->first != here && f->last != here && e->time - f->time < KERB_FOLLOWED_TIME) {
		packet->first = f->first;
		e->trace = f->trace;
		return f->sessions;
	}
	packet->first = here;
	e->trace = (__u64)e->cpu << 48 | packet->packets;
	return 0;
}

/* Leaves a packet for its next chain, as a module has made it. */
static __always_inline void trace_leave(struct kerb_traced *packet, __u64 key, __u64 here)
{
	const struct kerb_trace_event *e = &packet->head;
	struct kerb_followed f = { .trace = e->trace,
				   .time = e->time,
				   .sessions = packet->wanted,
				   .first = packet->first,
				   .last = here };

	if (!key || key == packet->key || e->verdict == KERB_DROP)
		return;
	packet->key = key;
	bpf_map_update_elem(&kerb_followed, &key, &f, BPF_ANY);
}

/* The sessions that want a packet at the head of its chain. followed: those that wanted it at the
 * one before. */
static __always_inline __u64 trace_sessions(kerb_ctx *ctx, const __u32 *at, __u64 followed)
{
	__u32 here = at ? *at : ~0U;
	__u64 wanted = 0;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++)
		if (here >> i & 1 && (followed >> i & 1 || kerb_trace_wants(ctx, i)))
			wanted |= 1ULL << i;
	return wanted;
}

/* Copies the packet's first bytes, and returns how many. The helper for XDP is of Linux 5.18. */
static __always_inline __u32 trace_bytes(kerb_ctx *ctx, __u8 *to, const __u8 *data, const void *end,
					 __u32 length, __u32 wanted)
{
	__u32 n = length < wanted ? length : wanted;

	if (n == 0 || n > KERB_TRACE_BYTES)
		return 0;
#ifdef KERB_HOOK_XDP
	for (__u32 i = 0; i < KERB_TRACE_BYTES; i++) {
		if (i >= n || (const void *)(data + i + 1) > end)
			return i;
		to[i] = data[i];
	}
	return n;
#else
	n--;
	kerb_bound(n, KERB_TRACE_BYTES - 1); /* a power of two less one */
	return bpf_skb_load_bytes(ctx, 0, to, n + 1) ? 0 : n + 1;
#endif
}

/* Takes numbers and the hook's context only, so that the verifier checks it once, and not in the
 * context of each module. The caller has no branches, after each of which the verifier would walk
 * the modules again. word: trace_where at the head, and a module's note behind it. */
__noinline int kerb_trace_event(kerb_ctx *ctx, __u64 word, __u64 what, __u32 verdict,
				__u32 to_flags)
{
	union trace_what did = {.all = what};
	union trace_where w;
	__u32 zero = 0, bytes = 0, off;
	__u64 key, here, trace;
	struct kerb_traced *packet = bpf_map_lookup_elem(&kerb_traced, &zero);
	struct kerb_trace_event *e;
	void *data = (void *)kerb_ctx_field(ctx, data),
	     *end = (void *)kerb_ctx_field(ctx, data_end);
	int head = did.position == KERB_TRACE_HEAD;

	if (!packet || (!head && !packet->wanted))
		return 0;
	e = &packet->head;
	trace = e->trace;
	__builtin_memset(e, 0, sizeof(*e));
	e->time = bpf_ktime_get_ns();
	if (head)
		packet->where = word;
	else
		e->note = word;
	w.all = packet->where;
	off = trace_ip(data, end, w, w.flags & KERB_F_L4 ? w.l4 : 0, e);
	trace_l4(data, end, off, e);
	key = trace_key(data, end, w, off, e);
	e->ifindex = kerb_ctx_field(ctx, KERB_CTX_IFINDEX);
	e->len = frame_len(ctx);
	e->chain = did.chain;
	e->to_ifindex = did.to_ifindex;
	e->to_flags = to_flags;
	e->cpu = bpf_get_smp_processor_id();
	e->position = did.position;
	e->verdict = verdict > 0xff ? 0xff : verdict;
	e->reason = did.reason;
	e->outcome = w.outcome;
	here = (__u64)e->ifindex << 16 | did.chain;
	if (head) {
		packet->wanted = trace_begin(packet, key, here);
		packet->wanted = trace_sessions(
			ctx, bpf_map_lookup_elem(&kerb_trace_at, &packet->head.ifindex),
			packet->wanted);
		if (!packet->wanted)
			return 0;
		bytes = trace_bytes(ctx, packet->bytes, data, end, e->len, KERB_TRACE_BYTES);
	} else {
		e->elapsed = e->time - packet->written;
		e->trace = trace;
		trace_leave(packet, key, here);
	}
	e->packet = packet->packets;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++)
		kerb_trace_write(i, bytes);
	packet->written = bpf_ktime_get_ns();
	return 0;
}

/* Called at the head of a chain, only in the chains that the agent links for a trace: others do not
 * pay for it. */
SEC("kerb/trace_head") int kerb_trace_head(struct kerb_pkt *pkt, __u32 chain)
{
	union trace_where w = { .l3 = pkt->l3,
				.l4 = pkt->l4,
				.family = pkt->family,
				.proto = pkt->proto,
				.flags = pkt->flags,
				.outcome = pkt->outcome };
	union trace_what did = {.chain = chain, .position = KERB_TRACE_HEAD};

	kerb_trace_event(pkt->ctx, w.all, did.all, KERB_NEXT, 0);
	return 0;
}

/* Called after each module. It reads nothing of the packet context that the head has written: else
 * the verifier would walk the modules once for each way through the parser. */
SEC("kerb/trace")
int kerb_trace(struct kerb_noted_pkt *noted, __u32 position, __u32 verdict, __u32 chain,
	       __u32 to_flags)
{
	const struct kerb_pkt *pkt = &noted->pkt;
	union trace_what did = { .to_ifindex = pkt->to_ifindex,
				 .chain = chain,
				 .position = position,
				 .reason = pkt->reason };

	kerb_trace_event(pkt->ctx, noted->note, did.all, verdict, pkt->to_flags & to_flags);
	return 0;
}

#endif /* KERB_CHAIN_TRACE_H */
