/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Messages in `kerb trace`: an sk_msg program reports its verdict on each message:
 *
 *	SEC("sk_msg") int redirect(struct sk_msg_md *msg)
 *	{
 *		__u64 began = kerb_message_begin();
 *		int verdict = ...;	KERB_NEXT for TCP, KERB_REDIRECT
 *
 *		kerb_message_end(msg, began, verdict, 0, 0);
 *		return SK_PASS;
 *	}
 *
 * Without a trace it costs one lookup. Linux 5.15. */
#ifndef KERB_MESSAGES_H
#define KERB_MESSAGES_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <kerb/trace.h>
#include <kerb/types.h>

/* Bit mask of the trace sessions that trace messages, and the chain number of this module in
 * events. The agent writes these maps (internal/dataplane/messages.go). */
struct kerb_message_sessions {
	__u32 sessions, chain;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct kerb_message_sessions);
} kerb_message_sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__type(value, struct kerb_trace_filter);
} kerb_message_filter SEC(".maps");

/* The rings of the sessions, as in kerb_events of chains. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_RINGBUF);
			__uint(max_entries, 1 << 20);
		});
} kerb_message_events SEC(".maps");

/* Starts the processing of a message. Returns the time, or 0 if no trace requests messages. */
static __always_inline __u64 kerb_message_begin(void)
{
	__u32 zero = 0;
	const struct kerb_message_sessions *s =
		bpf_map_lookup_elem(&kerb_message_sessions, &zero);

	return s && s->sessions ? bpf_ktime_get_ns() : 0;
}

/* Fills in addresses and ports. IPv6 sockets may have IPv4-mapped addresses. */
static __always_inline void kerb_message_ends(const struct sk_msg_md *msg,
					      struct kerb_trace_event *e)
{
	__u32 *s = (void *)e->saddr, *d = (void *)e->daddr;
	int mapped = msg->local_ip6[0] == 0 && msg->local_ip6[1] == 0 &&
		     msg->local_ip6[2] == bpf_htonl(0xffff);

	e->proto = 6; /* IPPROTO_TCP */
	e->sport = msg->local_port;
	e->dport = bpf_ntohl(msg->remote_port);
	if (msg->family == 2 /* AF_INET */) {
		e->family = 4;
		s[0] = msg->local_ip4;
		d[0] = msg->remote_ip4;
	} else if (mapped) {
		e->family = 4;
		s[0] = msg->local_ip6[3];
		d[0] = msg->remote_ip6[3];
	} else {
		e->family = 6;
		s[0] = msg->local_ip6[0];
		s[1] = msg->local_ip6[1];
		s[2] = msg->local_ip6[2];
		s[3] = msg->local_ip6[3];
		d[0] = msg->remote_ip6[0];
		d[1] = msg->remote_ip6[1];
		d[2] = msg->remote_ip6[2];
		d[3] = msg->remote_ip6[3];
	}
}

static __always_inline void kerb_message_write(__u32 session, const struct kerb_trace_event *e)
{
	struct kerb_trace_filter *f = bpf_map_lookup_elem(&kerb_message_filter, &session);
	void *ring = bpf_map_lookup_elem(&kerb_message_events, &session);

	if (!f || !f->active || (f->netns && f->netns != e->key) || !kerb_trace_wanted(f, e) ||
	    (f->slower && e->elapsed <= f->slower))
		return;
	if (!ring || bpf_ringbuf_output(ring, (void *)e, sizeof(*e), 0))
		__sync_fetch_and_add(&f->lost, 1);
}

static __noinline int kerb_message_report(struct sk_msg_md *msg, __u64 began, __u32 verdict,
					  __u64 note)
{
	__u32 zero = 0;
	const struct kerb_message_sessions *s =
		bpf_map_lookup_elem(&kerb_message_sessions, &zero);
	struct kerb_trace_event e = {};

	if (!s)
		return 0;
	e.time = began;
	e.elapsed = bpf_ktime_get_ns() - began;
	e.note = note;
	e.len = msg->size;
	e.chain = s->chain;
	e.cpu = bpf_get_smp_processor_id();
	e.position = KERB_TRACE_MESSAGE;
	e.verdict = verdict;
	e.key = bpf_get_netns_cookie(msg);
	kerb_message_ends(msg, &e);
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < KERB_TRACE_SESSIONS; i++)
		if (s->sessions >> i & 1)
			kerb_message_write(i, &e);
	return 0;
}

/* Ends the processing of a message. began: result of kerb_message_begin(). verdict: KERB_NEXT or
 * KERB_REDIRECT. key, value: a note, as of kerb_note(); key 0: none. value has 48 bits. */
static __always_inline void kerb_message_end(struct sk_msg_md *msg, __u64 began, __u32 verdict,
					     __u16 key, __u64 value)
{
	if (began)
		kerb_message_report(msg, began, verdict,
				    (__u64)key << 48 | (value & 0xffffffffffffULL));
}

#endif
