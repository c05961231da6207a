/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The contract of an application. apps/<name>/<name>.h includes this file and defines
 *
 *	static __always_inline int <name>_check(struct rsp_request *r)
 *	static __always_inline int <name>_answer(struct rsp_request *r)
 *
 * check decides about a request. Headers, checksums, address, port, source and length have been
 * checked already, as far as an ordinary server relies on them. check must have no side effects,
 * and returns
 *
 *	RSP_PASS	pass the request to the ordinary server; r->why: the reason, 0 to 7, which
 *			the application defines, for the counters
 *	RSP_CONSUME	consume the request without a reply
 *	RSP_REPLY	reply with r->req.reply_len bytes
 *
 * answer is called after RSP_CONSUME and RSP_REPLY, when the rate limits allow it and the reply
 * fits. It changes state, and for a reply writes exactly r->req.reply_len bytes: either in place
 * with kerb_reply_store(), or, with r->scratch set, to rsp_scratch(), from where they are copied.
 * Bytes that it does not write are those of the request: an echo writes nothing. It returns 0, or
 * -1 to drop the request.
 *
 * A reply may have up to listener->amplification times the bytes of its request, including IP
 * headers, unless the application sets r->proven. check can reply with a challenge instead
 * (r->challenge); a request with a longer reply and without a proof passes to the ordinary server.
 *
 * The responder does everything else: addresses, ports, lengths, checksums, IP options, limits,
 * counters.
 *
 * State is in maps of the application, arrays of RSP_SLOTS elements indexed by r->slot: one element
 * per listener, kept while the listener keeps its name. rsp_changed() notifies user space of a
 * change. */
#ifndef RSP_RESPOND_H
#define RSP_RESPOND_H

#include <kerb/respond.h>

/* for listeners of this configuration and the previous one; slot 0 is not used */
#define RSP_SLOTS	64
#define RSP_APP_WORDS	8
#define RSP_APP_REASONS 8

#define RSP_DROP_CONSUMED KERB_DROP_MODULE_FIRST /* requests without a reply */

enum rsp_decision {
	RSP_PASS = 0,
	RSP_CONSUME = 1,
	RSP_REPLY = 2,
};

/* One listener, as the control plane writes it. */
struct rsp_listener {
	__u32 slot; /* of its state and counters */
	__u8 app;   /* enum rsp_app, apps_gen.h */
	__u8 drop;  /* requests over a rate limit: 0 pass, 1 are dropped */
	__u16 min_request, max_request; /* bytes of payload; other requests pass */
	__u16 max_reply;
	__u32 total_rate;	     /* requests per 2^27 ns (0.13 s); 0: unlimited */
	__u64 source_cost;	     /* mean ns between requests of a source; 0: unlimited */
	__u64 source_burst;	     /* ns by which a source may be ahead of that */
	__u32 config[RSP_APP_WORDS]; /* of the application */
	/* the most bytes of a reply per byte of the request, with IP headers, to a source without
	 * proof of its address; 0: unlimited */
	__u32 amplification;
	__u32 partial; /* enum rsp_partial_policy */
};

/* No tunables of its own: settings that change without a new program are in halves of maps. */
struct rsp_values {
	__u64 zero;
};

KERB_TUNABLES(struct rsp_values);

/* A request. */
struct rsp_request {
	struct kerb_request req;
	const struct rsp_listener *listener;
	__u32 slot;
	__u8 why;     /* reason of the application for RSP_PASS */
	__u8 scratch; /* the reply is in rsp_scratch() */
	__u8 same;    /* the payload of the reply is that of the request */
	/* the request proves that its sender receives packets to its source address */
	__u8 proven;
	__u8 challenge; /* the reply requests such a proof */
	__u8 half;	/* of the maps, see KERB_TUNABLES */
};

/* Buffer for a reply of up to KERB_REPLY_MAX bytes that is not written in place. It is longer, so
 * that an offset masked with 0x7ff needs no further check; bytes after the reply need not be
 * cleared. */
struct rsp_scratch {
	__u8 data[0x800 + 32];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct rsp_scratch);
} scratch SEC(".maps");

static __always_inline struct rsp_scratch *rsp_scratch(void)
{
	kerb_key32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

/* Notification of changes at the pace of the reader: it sets armed when it has read the state, and
 * the next change sends one event. Costs a request the check of a flag. */
struct rsp_feed {
	__u32 armed;
	__u32 zero;
};

struct rsp_event {
	__u32 slot;
	__u32 zero;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RSP_SLOTS);
	__type(key, __u32);
	__type(value, struct rsp_feed);
} feeds SEC(".maps");

KERB_EVENTS(changes, 1 << 14);

static __noinline void rsp_change_send(__u32 slot)
{
	struct rsp_event event = {.slot = slot};

	kerb_event(&changes, &event, sizeof(event));
}

static __always_inline void rsp_changed(const struct rsp_request *r)
{
	kerb_key32 slot = r->slot;
	struct rsp_feed *feed = bpf_map_lookup_elem(&feeds, &slot);

	if (feed && feed->armed) {
		feed->armed = 0;
		rsp_change_send(slot);
	}
}

#endif
