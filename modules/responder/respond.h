/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The contract of an application. apps/<name>/<name>.h includes this file and defines
 *
 *	static __always_inline int <name>_check(struct rsp_request *r)
 *	static __always_inline int <name>_answer(struct rsp_request *r)
 *
 * check examines a request that has passed everything an ordinary server relies on (headers,
 * checksums, a listener for its address and port, a source that may be answered, a length within
 * the application's limits). It changes nothing that anybody can see, and returns
 *
 *	RSP_PASS	not one for the kernel: on to the ordinary server. r->why says which of the
 *			application's reasons (0-7)
 *	RSP_CONSUME	take it, and answer nothing
 *	RSP_REPLY	answer it with r->req.reply_len bytes
 *
 * answer is called for the last two, when the rate limits allow it and there is room for the reply.
 * It changes state, and for a reply writes exactly r->req.reply_len bytes: either into the
 * request's place with kerb_reply_store(), or, with r->scratch set, into rsp_scratch(), from where
 * they are copied. What it leaves alone is still the request's: an echo has nothing to write. It
 * returns 0, or -1 to drop the request after all.
 *
 * A reply may have listener->amplification times the bytes of its request, IP headers included,
 * unless the application sets r->proven. check can reply with a challenge instead (r->challenge);
 * what is longer and not proven passes to the ordinary server.
 *
 * Everything else is done for it: addresses, ports, lengths, checksums, options, limits, counters.
 *
 * State lives in maps of the application, arrays of RSP_SLOTS elements indexed by r->slot: one per
 * listener, kept for as long as the listener has its name. After a change of it that user space may
 * want to know of, rsp_changed() reports it. */
#ifndef RSP_RESPOND_H
#define RSP_RESPOND_H

#include <kerb/respond.h>

/* listeners of this configuration and the one before it; slot 0 is not used */
#define RSP_SLOTS	64
#define RSP_APP_WORDS	8
#define RSP_APP_REASONS 8

#define RSP_DROP_CONSUMED KERB_DROP_MODULE_FIRST /* requests that want no answer */

enum rsp_decision {
	RSP_PASS = 0,
	RSP_CONSUME = 1,
	RSP_REPLY = 2,
};

/* One listener, as the control plane writes it. */
struct rsp_listener {
	__u32 slot; /* of its state and counters */
	__u8 app;   /* enum rsp_app, apps_gen.h */
	__u8 drop;  /* requests over a limit: 0 pass, 1 drop */
	__u16 min_request, max_request; /* bytes of payload; others pass */
	__u16 max_reply;
	__u32 total_rate;   /* requests taken in 2^27 ns (0.13 s), 0: no limit */
	__u64 source_cost;  /* ns between two requests of one source in the long run, 0: no limit */
	__u64 source_burst; /* ns that a source may be ahead of that */
	__u32 config[RSP_APP_WORDS]; /* the application's own */
	/* IP bytes of a reply for one of the request, to a source that is not proven; 0: no
	 * limit */
	__u32 amplification;
	__u32 partial; /* enum rsp_partial_policy */
};

/* All that changes without a new program is in halves of maps. */
struct rsp_values {
	__u64 zero;
};

KERB_TUNABLES(struct rsp_values);

/* A request. */
struct rsp_request {
	struct kerb_request req;
	const struct rsp_listener *listener;
	__u32 slot;
	__u8 why;     /* the application's reason to pass */
	__u8 scratch; /* the reply is in rsp_scratch() */
	__u8 same;    /* the reply's payload is the request's */
	/* the request shows that its sender receives what is sent to its source address */
	__u8 proven;
	__u8 challenge; /* the reply asks for such a proof */
	__u8 half;	/* of the maps: see KERB_TUNABLES */
};

/* Room for a reply of up to KERB_REPLY_MAX bytes that is not written in place. It is longer, so
 * that an offset that is masked with 0x7ff needs no further check; what follows a reply need not be
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

/* Changes of state, reported to user space at its own pace: who reads sets armed when it has seen
 * everything, and is sent one event by the next change. Costs a request one check of a flag. */
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

static __noinline void rsp_send_change(__u32 slot)
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
		rsp_send_change(slot);
	}
}

#endif
