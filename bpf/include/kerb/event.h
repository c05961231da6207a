/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Events for the module's control plane, through a ring buffer that the module declares.
 *
 *	KERB_EVENTS(seen, 1 << 16);
 *
 *	struct seen e = {.port = port};			copied
 *	kerb_event(&seen, &e, sizeof(e));
 *
 *	struct seen *e = kerb_event_reserve(&seen, sizeof(*e));	written in place
 *	if (e) {
 *		e->port = port;
 *		kerb_event_submit(e, 0);
 *	}
 *
 * An event that finds no room is lost, never waited for. Both are counted, and shown by the agent:
 * a reader that is too slow is not mistaken for a quiet network. A module without events has no map
 * of this. */
#ifndef KERB_EVENT_H
#define KERB_EVENT_H

#include <kerb/packet.h>

/* Indices of kerb_event_counts. */
enum kerb_event_count {
	KERB_EVENTS_SENT = 0,
	KERB_EVENTS_LOST = 1,
	KERB_EVENTS_LOST_BYTES = 2,
	KERB_EVENT_COUNTS = 3,
};

struct kerb_event_counts_map {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KERB_EVENT_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
};

/* Defined by KERB_EVENTS: C merges any number of equal definitions without a value. */
extern struct kerb_event_counts_map kerb_event_counts SEC(".maps");

/* Declares a ring buffer. bytes: a power of two, at least 4096; the agent enlarges it to a page.
 * Each event takes its size, rounded up to a multiple of 8, plus 8 bytes. */
#define KERB_EVENTS(name, bytes)                    \
	struct {                                    \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, bytes);         \
	} name SEC(".maps");                        \
	struct kerb_event_counts_map kerb_event_counts SEC(".maps")

/* Atomic although it is per CPU: programs that interrupt this one on a real-time kernel may send
 * events as well. */
static __always_inline void kerb_event_count(__u32 what, __u64 n)
{
	__u64 *count = bpf_map_lookup_elem(&kerb_event_counts, &what);

	if (count)
		__sync_fetch_and_add(count, n);
}

static __always_inline void kerb_event_lost(__u64 size)
{
	kerb_event_count(KERB_EVENTS_LOST, 1);
	kerb_event_count(KERB_EVENTS_LOST_BYTES, size);
}

/* Sends size bytes. flags: 0 wakes a reader that has read everything before; BPF_RB_NO_WAKEUP
 * leaves the event to the next wake-up, BPF_RB_FORCE_WAKEUP always wakes; kerb_event_batch()
 * chooses. Returns 0, or a negative errno if the event is lost. */
static __always_inline int kerb_event_flags(void *ring, void *data, __u64 size, __u64 flags)
{
	int rc = bpf_ringbuf_output(ring, data, size, flags);

	if (rc)
		kerb_event_lost(size);
	else
		kerb_event_count(KERB_EVENTS_SENT, 1);
	return rc;
}

/* Sends size bytes and wakes the reader. Returns 0, or a negative errno if the event is lost. */
static __always_inline int kerb_event(void *ring, void *data, __u64 size)
{
	return kerb_event_flags(ring, data, size, 0);
}

/* Reserves room for an event of constant size, which must be submitted or discarded on every path.
 * Returns NULL if the event is lost. */
static __always_inline void *kerb_event_reserve(void *ring, __u64 size)
{
	void *event = bpf_ringbuf_reserve(ring, size, 0);

	if (!event)
		kerb_event_lost(size);
	return event;
}

/* Sends a reserved event. flags: see kerb_event_flags(). */
static __always_inline void kerb_event_submit(void *event, __u64 flags)
{
	bpf_ringbuf_submit(event, flags);
	kerb_event_count(KERB_EVENTS_SENT, 1);
}

/* Discards a reserved event, which is then neither sent nor lost. It wakes a waiting reader, which
 * has to skip the event: otherwise later events would find an unread record, and not wake the
 * reader. */
static __always_inline void kerb_event_discard(void *event)
{
	bpf_ringbuf_discard(event, 0);
}

#ifdef KERB_HOOK_TC

/* Reserves an event of a type whose last member is `__u8 frame[]`, and copies the frame of *pkt to
 * it. len: a variable with the length of the frame; size: a constant, at least len. Returns from
 * the caller with -1 if the event is lost. The comparisons are for the verifier of Linux 6.1: at
 * this place, in this form. */
#define KERB_EVENT_RESERVE_FRAME(event, ring, pkt, len, size)                                   \
	do {                                                                                    \
		(event) = kerb_event_reserve(ring, sizeof(*(event)) + (size));                  \
		if (!(event))                                                                   \
			return -1;                                                              \
		kerb_opaque(len);                                                               \
		if ((len) < ETH_HLEN) {                                                         \
			kerb_event_discard(event);                                              \
			return -1;                                                              \
		}                                                                               \
		kerb_opaque(len);                                                               \
		if ((len) > (size) || bpf_skb_load_bytes((pkt)->ctx, 0, (event)->frame, len)) { \
			kerb_event_discard(event);                                              \
			return -1;                                                              \
		}                                                                               \
	} while (0)

#endif

/* Returns flags for kerb_event_flags() and kerb_event_submit() that wake the reader only when at
 * least bytes are unread, which saves wake-ups at high rates. The reader must poll for the rest, as
 * sdk.Events does. */
static __always_inline __u64 kerb_event_batch(void *ring, __u64 bytes)
{
	return bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= bytes ? BPF_RB_FORCE_WAKEUP
								   : BPF_RB_NO_WAKEUP;
}

#endif
