/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Answers CoAP GET requests (RFC 7252) for resources whose values user space sets. Confirmable
 * requests get a piggybacked response, non-confirmable ones a response with the complement of their
 * message ID, which is unique for as long as theirs. Everything else passes to the server.
 * model_test.go is the same in Go. */
#ifndef RSP_COAP_H
#define RSP_COAP_H

#include "message.h"
#include "value.h"
#include "challenge.h"

#define COAP_VALID   0x43
#define COAP_CONTENT 0x45

/* For how long a message with the same ID is a duplicate (RFC 7252, section 4.8.2), ns. */
#define COAP_EXCHANGE_LIFETIME 247000000000ULL
#define COAP_NON_LIFETIME      145000000000ULL

KERB_CONFIG(_Bool, coap_duplicates, 1); /* some listener detects duplicates */

/* rsp_listener.config[0] */
#define COAP_CONFIG_DUPLICATES 1

/* The key by which duplicates are detected. IPv4: the first 4 bytes. */
struct coap_exchange {
	struct in6_addr from, to;
	__be32 ports;
	__u16 id; /* network byte order */
	__u16 family;
};

/* The reply to a request. A message with the same ID, but another type, token or resource is no
 * duplicate: its client has reused an ID, and would not accept the earlier reply. */
struct coap_answered {
	__u64 at; /* ns since boot */
	__u64 token;
	__u32 resource;
	__u32 version;
	__u64 head; /* the first byte */
};

/* The oldest are evicted: an undetected duplicate is answered like a new request, which is allowed
 * as GET is idempotent (RFC 7252, section 4.5). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct coap_exchange);
	__type(value, struct coap_answered);
} coap_exchanges SEC(".maps");

struct coap_scratch {
	struct coap_work work;
	struct coap_exchange exchange;
	struct coap_answered answer;
	struct coap_claim claim;
	__u64 is_new;			    /* answer is to be stored in coap_exchanges */
	__u64 reply_len, proven, challenge; /* arguments and results of coap_source_check */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct coap_scratch);
} coap_scratches SEC(".maps");

static __always_inline struct coap_scratch *coap_scratch(void)
{
	kerb_key32 zero = 0;

	return bpf_map_lookup_elem(&coap_scratches, &zero);
}

/* Returns a > b without a branch. Both are below 2^63. */
static __always_inline __u64 coap_greater(__u64 a, __u64 b)
{
	__u64 less = b - a;

	kerb_opaque(less);
	return less >> 63;
}

/* Returns the first n bytes of a word, the others as zeros, without a branch; n may be less than 0
 * or more than 8. */
static __always_inline __u64 coap_bytes_keep(__u64 word, __s64 n)
{
	__u64 some = bpf_cpu_to_be64(~(~0ULL >> ((n & 7) * 8))), all = -coap_greater(n, 7),
	      none = n >> 63;

	return word & (some | all) & ~none;
}

static __always_inline __u32 coap_token_len(const struct coap_work *w)
{
	return w->in[0] & 15;
}

static __always_inline int coap_is_non(const struct coap_work *w)
{
	return w->in[0] & COAP_NON;
}

static __always_inline __u64 coap_token(const struct coap_work *w)
{
	return coap_bytes_keep(COAP_LOAD(__u64, w, 4), coap_token_len(w));
}

/* Looks up the resource or host whose name is at offset `at` of the message; NULL: none. */
static __always_inline __u32 *coap_name_lookup(struct rsp_request *r, struct coap_work *w, __u32 at,
					       __u32 len, __u32 host)
{
	w->name.slot = r->slot;
	w->name.len = len;
	w->name.host = host;
#pragma unroll
	for (int i = 0; i < COAP_MAX_PATH / 8; i++)
		w->name.bytes[i] = coap_bytes_keep(COAP_LOAD(__u64, w, (at & COAP_AT) + i * 8),
						   (__s64)len - i * 8);
	if (!host) /* the delta of the first option depends on the previous option */
		*(__u8 *)w->name.bytes &= 15;
	return bpf_map_lookup_elem(&coap_names, &w->name);
}

static __always_inline __u32 *coap_resource_lookup(struct rsp_request *r, struct coap_work *w)
{
	__u32 len = w->path_end - w->path;

	if (len > COAP_MAX_PATH)
		return 0;
	return coap_name_lookup(r, w, w->path, len, 0);
}

static __always_inline void coap_work_init(struct rsp_request *r, struct coap_work *w)
{
	struct udphdr *udp = kerb_udp(r->req.pkt);

	w->len = r->req.len;
	w->number = 0;
	w->once = 0;
	w->count = 0;
	w->path = 0;
	w->path_end = 0;
	w->host_len = 0;
	w->echo = 0;
	w->port = udp ? bpf_ntohs(udp->dest) : 0;
	w->accept = COAP_ANY_FORMAT;
	w->block = COAP_NO_BLOCK;
}

static __always_inline int coap_exchange_fill(struct rsp_request *r, const struct coap_work *w,
					      struct coap_exchange *e)
{
	struct udphdr *udp = kerb_udp(r->req.pkt);
	struct ipv6hdr *ip6 = kerb_ip6(r->req.pkt);
	struct iphdr *ip4 = kerb_ip4(r->req.pkt);

	__builtin_memset(e, 0, sizeof(*e));
	if (ip4) {
		e->from.in6_u.u6_addr32[0] = ip4->saddr;
		e->to.in6_u.u6_addr32[0] = ip4->daddr;
	} else if (ip6) {
		e->from = ip6->saddr;
		e->to = ip6->daddr;
	}
	if (!udp)
		return -1;
	e->ports = (__u32)udp->source << 16 | udp->dest;
	e->id = COAP_LOAD(__u16, w, 2);
	e->family = r->req.pkt->family;
	return 0;
}

/* Returns the earlier reply if the request is a duplicate, or NULL. Fills s->exchange and s->answer
 * for coap_answer. */
static __always_inline struct coap_answered *
coap_duplicate_lookup(struct rsp_request *r, struct coap_scratch *s, __u32 resource, __u64 now)
{
	__u64 lifetime = coap_is_non(&s->work) ? COAP_NON_LIFETIME : COAP_EXCHANGE_LIFETIME;
	struct coap_answered *earlier;

	if (coap_exchange_fill(r, &s->work, &s->exchange))
		return 0;
	s->is_new = 1;
	s->answer.at = now;
	s->answer.token = coap_token(&s->work);
	s->answer.resource = resource;
	s->answer.head = s->work.in[0];
	earlier = bpf_map_lookup_elem(&coap_exchanges, &s->exchange);
	if (!earlier || now >= earlier->at + lifetime || earlier->head != s->answer.head ||
	    earlier->token != s->answer.token || earlier->resource != resource)
		return 0;
	return earlier;
}

static __always_inline int coap_etag_matches(const struct coap_work *w, __u64 etag)
{
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < COAP_MAX_OPTIONS; i++) {
		if (i >= w->count)
			break;
		if (w->etags[i] == etag)
			return 1;
	}
	return 0;
}

/* Writes Max-Age, an integer without leading zero bytes, after an option whose number is less by
 * delta. Returns the offset after it. */
static __always_inline __u32 coap_put_max_age(__u8 *out, __u32 off, __u32 delta, __u64 age)
{
	__u32 len = coap_greater(age, 0) + coap_greater(age, 0xff) + coap_greater(age, 0xffff) +
		    coap_greater(age, 0xffffff);

	COAP_OUT(__u8, off) = delta << 4 | len;
	COAP_OUT(__u32, off + 1) = bpf_htonl(age << (32 - 8 * len));
	return off + 1 + len;
}

static __always_inline __u32 coap_put_block(__u8 *out, __u32 off, __u32 block)
{
	__u32 len = coap_greater(block, 0);

	COAP_OUT(__u8, off) = (23 - 14) << 4 | len;
	COAP_OUT(__u8, off + 1) = block;
	return off + 1 + len;
}

/* Writes header and token of the reply. Returns the offset after them. */
static __always_inline __u32 coap_put_head(__u8 *out, const struct coap_work *w, __u32 code)
{
	__u32 len = coap_token_len(w);
	__u16 id = COAP_LOAD(__u16, w, 2);

	COAP_OUT(__u8, 0) = (coap_is_non(w) ? 0x50 : 0x60) | len; /* NON, or ACK */
	COAP_OUT(__u8, 1) = code;
	COAP_OUT(__u16, 2) = coap_is_non(w) ? ~id : id;
	COAP_OUT(__u64, 4) = COAP_LOAD(__u64, w, 4);
	return 4 + len;
}

static __always_inline __u32 coap_put_etag(__u8 *out, __u32 off, __u64 etag)
{
	COAP_OUT(__u8, off) = 4 << 4 | COAP_ETAG_LEN;
	COAP_OUT(__u64, off + 1) = etag;
	return off + 1 + COAP_ETAG_LEN;
}

/* Writes the reply. *after is set to a number that depends on all loads of the value. */
static __always_inline int coap_reply_write(struct rsp_request *r, struct coap_work *w,
					    const struct coap_value *v, __u64 now, __u64 *after)
{
	__u64 etag = v->etag, expires = v->expires,
	      age = expires ? (expires - now) / 1000000000 : v->max_age;
	struct rsp_scratch *scratch = rsp_scratch();
	__u32 len = v->len, off;
	__u8 *out;

	*after = etag | expires | age | len;
	if (!scratch)
		return coap_pass(r, COAP_TOO_LONG);
	out = scratch->data;
	if (coap_etag_matches(w, etag)) {
		off = coap_put_etag(out, coap_put_head(out, w, COAP_VALID), etag);
		r->req.reply_len = kerb_through(w->hidden, coap_put_max_age(out, off, 14 - 4, age));
		return RSP_REPLY;
	}
	if (w->block != COAP_NO_BLOCK && len > 16 << (w->block & 7))
		return coap_pass(r, COAP_TOO_LONG);
	off = coap_put_etag(out, coap_put_head(out, w, COAP_CONTENT), etag);
	COAP_OUT(__u32, off) = *(__u32 *)v->option;
	off += v->option_len & 3;
	off = coap_put_max_age(out, off, v->option_len ? 14 - 12 : 14 - 4, age);
	if (w->block != COAP_NO_BLOCK)
		off = coap_put_block(out, off, w->block);
	COAP_OUT(__u8, off) = COAP_PAYLOAD; /* not part of the reply if there is no payload */
	off = kerb_through(w->hidden, off + coap_greater(len, 0));
	*after |= coap_value_copy(out, off, v);
	r->req.reply_len = kerb_through(w->hidden, off + len);
	return RSP_REPLY;
}

/* Replaces a reply that exceeds the amplification limit by a challenge, unless the source address
 * is proven. A global function, which the verifier checks once; arguments and results are in the
 * scratch buffer, so that the caller has no branch. asked: bytes of the request with its IP header.
 * limits: max_reply in bits 0 to 15, the amplification above. */
KERB_GLOBAL int coap_source_check(kerb_ctx *ctx, __u32 l3, __u32 family, __u32 asked, __u32 limits)
{
	__u32 zero = 0, headers = (family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr)) +
				  sizeof(struct udphdr);
	struct coap_secret *secret = bpf_map_lookup_elem(&coap_secrets, &zero);
	struct rsp_scratch *reply = rsp_scratch();
	struct coap_scratch *s = coap_scratch();
	__u64 *addr;

	if (!s)
		return 0;
	s->proven = 0;
	s->challenge = 0;
	if (!(limits >> 16) || headers + s->reply_len <= (limits >> 16) * (__u64)asked ||
	    s->reply_len > (limits & 0xffff))
		return 0;
	addr = kerb_frame_at(ctx, l3 + (family == 4 ? 12 : 8),
			     16); /* IPv4: source and destination */
	if (!addr || !reply || !secret || !(secret->key[0] | secret->key[1]))
		return 0; /* nothing can be proven */
	s->claim.addr[0] = family == 4 ? *(__u32 *)addr : addr[0];
	s->claim.addr[1] = family == 4 ? 0 : addr[1];
	s->claim.family = family;
	s->claim.period = kerb_now() >> COAP_ECHO_SHIFT;
	if (s->work.echo && coap_is_proven(s->work.echo, &s->claim, secret)) {
		s->proven = 1;
		return 0;
	}
	s->reply_len = coap_put_challenge(reply->data,
					  coap_put_head(reply->data, &s->work, COAP_UNAUTHORIZED),
					  coap_claim_hash(&s->claim, secret));
	s->challenge = 1;
	s->is_new = 0;
	return 0;
}

static __always_inline int coap_value_reply(struct rsp_request *r, struct coap_scratch *s,
					    __u32 resource)
{
	struct coap_version *state = bpf_map_lookup_elem(&coap_versions, &resource);
	struct coap_answered *earlier = 0;
	struct coap_value *v;
	__u64 now = kerb_now(), after;
	__u32 version;
	int decision;

	if (!state)
		return coap_pass(r, COAP_UNKNOWN);
	version = *(volatile __u32 *)&state->active;
	s->is_new = 0;
	if (coap_duplicates && r->listener->config[0] & COAP_CONFIG_DUPLICATES)
		earlier = coap_duplicate_lookup(r, s, resource, now);
	if (earlier && coap_is_non(&s->work)) {
		s->is_new = 0;
		return RSP_CONSUME;
	}
	if (earlier && coap_value_is_consistent(state, earlier->version, 0)) {
		s->is_new = 0;
		version = earlier->version;
		now = earlier->at;
	}
	s->answer.version = version;
	v = coap_value_lookup(resource, version);
	if (!v || !v->set || (v->expires && now >= v->expires))
		return coap_pass(r, COAP_NO_VALUE);
	if (s->work.accept != COAP_ANY_FORMAT && s->work.accept != v->format)
		return coap_pass(r, COAP_UNACCEPTABLE);
	r->scratch = 1;
	decision = coap_reply_write(r, &s->work, v, now, &after);
	if (!coap_value_is_consistent(state, version, after))
		return coap_pass(r, COAP_CHANGED);
	if (decision != RSP_REPLY)
		return decision;
	s->reply_len = r->req.reply_len;
	coap_source_check(r->req.pkt->ctx, r->req.pkt->l3, r->req.pkt->family,
			  (__u32)(r->req.payload - r->req.pkt->l3) + r->req.len,
			  r->listener->amplification << 16 | r->listener->max_reply);
	r->req.reply_len = s->reply_len;
	r->proven = s->proven;
	r->challenge = s->challenge;
	return RSP_REPLY;
}

static __always_inline int coap_check(struct rsp_request *r)
{
	struct coap_scratch *s = coap_scratch();
	__u32 *resource;

	if (!s || r->req.len > COAP_MAX_REQUEST)
		return coap_pass(r, COAP_TOO_LONG);
	coap_work_init(r, &s->work);
	if (coap_request_copy(r, &s->work))
		return coap_pass(r, COAP_NO_GET);
	if (coap_request_parse(r, &s->work))
		return RSP_PASS;
	if (s->work.host_len && !coap_name_lookup(r, &s->work, s->work.host, s->work.host_len, 1))
		return coap_pass(r, COAP_UNKNOWN);
	resource = coap_resource_lookup(r, &s->work);
	return resource ? coap_value_reply(r, s, *resource) : coap_pass(r, COAP_UNKNOWN);
}

/* Stores the reply, for the detection of duplicates. */
static __always_inline int coap_answer(struct rsp_request *r)
{
	struct coap_scratch *s = coap_scratch();

	if (coap_duplicates && s && s->is_new)
		bpf_map_update_elem(&coap_exchanges, &s->exchange, &s->answer, BPF_ANY);
	return 0;
}

#endif
