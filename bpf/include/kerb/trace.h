/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Filters and events of traces, for chains and <kerb/messages.h>. The Go mirror is
 * internal/dataplane/trace.go. */
#ifndef KERB_TRACE_H
#define KERB_TRACE_H

#include <linux/types.h>

/* position of the first event of a packet: before any module */
#define KERB_TRACE_HEAD	  0xff
/* position of the event of a packet that the kernel dropped after the last chain */
#define KERB_TRACE_KERNEL 0xfe
/* a message, after the verdict of a module on sockets (kerb/messages.h) */
#define KERB_TRACE_MESSAGE 0xfd

/* A packet at the head of the chain, in which case its first bytes follow, or after a module; or a
 * message on a socket. */
struct kerb_trace_event {
	__u64 time;    /* ns, CLOCK_MONOTONIC */
	__u64 packet;  /* number of the packet on its CPU */
	__u64 elapsed; /* ns since the previous event was written: the module's time */
	__u64 note;    /* of the module (kerb_note), 0: none */
	__u64 trace;   /* id of the packet, the same in all chains that it passes */
	__u32 ifindex;
	__u32 len;
	__u32 chain;	  /* number of the chain, assigned by the agent */
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
	__u64 key; /* trace_key; of a message the cookie of its socket's network namespace */
};

/* Number of traces that may run at the same time. */
#define KERB_TRACE_SESSIONS 4

/* The filter of a `kerb trace` session; zero matches anything. Written by the agent. */
struct kerb_trace_filter {
	__u8 addr[16]; /* source or destination; IPv4 in the first four bytes */
	__u8 mask[16]; /* of addr: its other bits are zero */
	__u8 family;   /* of addr: 4, 6, or 0 */
	__u8 proto;
	__u16 port;   /* source or destination, host byte order */
	__u32 bytes;  /* of each packet that are reported, at most KERB_TRACE_BYTES */
	__u64 lost;   /* events for which the ring buffer had no room */
	__u64 slower; /* ns: packets whose modules took longer in one chain */
	__u64 active;
	__u64 after; /* 1: report packets that the kernel drops after the last chain */
	__u64 netns; /* cookie: of messages, those of sockets there; 0: all */
};

static __always_inline int kerb_same_prefix(const struct kerb_trace_filter *f, const __u8 *addr)
{
	const __u64 *want = (const void *)f->addr, *mask = (const void *)f->mask,
		    *have = (const void *)addr;

	return (have[0] & mask[0]) == want[0] && (have[1] & mask[1]) == want[1];
}

/* Returns whether the addresses and the port of an event match a session's filter. */
static __always_inline int kerb_trace_wanted(const struct kerb_trace_filter *f,
					     const struct kerb_trace_event *e)
{
	if (f->proto && f->proto != e->proto)
		return 0;
	if (f->port && f->port != e->sport && f->port != e->dport)
		return 0;
	if (f->family && f->family != e->family)
		return 0;
	return !f->family || kerb_same_prefix(f, e->saddr) || kerb_same_prefix(f, e->daddr);
}

#endif
