/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What traced chains share with each other, and with the program that sees what the kernel drops
 * after them (kernel_drops.bpf.c). */
#ifndef KERB_CHAIN_TRACE_MAPS_H
#define KERB_CHAIN_TRACE_MAPS_H

/* Traces that may run at the same time. */
#define KERB_TRACE_SESSIONS 4

/* What a session of `kerb trace` looks for; a zero stands for anything. Written by the agent. */
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
	__u64 after; /* whether it wants what the kernel drops after the last chain */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KERB_TRACE_SESSIONS);
	__type(key, __u32);
	__type(value, struct kerb_trace_filter);
} kerb_filter SEC(".maps");

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

/* A packet that has passed a traced chain, by trace_key: its next chain on this node knows it by
 * that, whatever a module has made of its addresses. Nothing of the packet is changed for it.
 * Written by traced chains; when it is full, packets that passed long ago are forgotten. */
struct kerb_followed {
	__u64 trace;
	__u64 time;	   /* ns, CLOCK_MONOTONIC */
	__u64 sessions;	   /* that want it, bits */
	__u64 shown;	   /* of them, those that have events of it */
	__u64 first, last; /* points at which its trace began, and where it was last */
};

#define KERB_FOLLOWED_TIME (1000 * 1000 * 1000ULL) /* ns between two chains */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct kerb_followed);
} kerb_followed SEC(".maps");

#endif /* KERB_CHAIN_TRACE_MAPS_H */
