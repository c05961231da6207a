/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Parsing of a CoAP message (RFC 7252): header, token and options of a GET. Values of options are
 * stored in memory, which the verifier does not track, so that it walks the loop over options once,
 * not once for each combination. */
#ifndef RSP_COAP_MESSAGE_H
#define RSP_COAP_MESSAGE_H

#include "../../respond.h"

#define COAP_MAX_REQUEST 256 /* also in message.go and path.go, as the next two */
#define COAP_MAX_OPTIONS 16
#define COAP_MAX_PATH	 64
#define COAP_AT		 0x1ff /* mask of offsets, a bound for the verifier */
#define COAP_SLACK	 (COAP_MAX_PATH + 8)

enum coap_option {
	COAP_URI_HOST = 3,
	COAP_ETAG = 4,
	COAP_OBSERVE = 6, /* RFC 7641 */
	COAP_URI_PORT = 7,
	COAP_URI_PATH = 11,
	COAP_ACCEPT = 17,
	COAP_BLOCK2 = 23, /* RFC 7959 */
	COAP_ECHO = 252, /* RFC 9175 */
	COAP_NO_RESPONSE = 258, /* RFC 7967 */
};

#define COAP_VERSION_TYPE 0xe0 /* bits of the first byte: 0x40 is version 1, CON or NON */
#define COAP_NON	  0x10
#define COAP_GET	  1
#define COAP_PAYLOAD	  0xff
#define COAP_ETAG_LEN	  8
#define COAP_ANY_FORMAT	  0xffffffff
#define COAP_NO_BLOCK	  0xffffffff

/* Why a request passes to the server (rsp_request.why); control plane and docs have names for
 * them. */
enum coap_why {
	/* no CoAP, or no GET: another method, an empty message, a payload */
	COAP_NO_GET = 0,
	COAP_OPTION = 1,       /* an option that is unsupported, repeated or malformed */
	COAP_UNKNOWN = 2,      /* no such resource or host */
	COAP_NO_VALUE = 3,     /* not set, or expired */
	COAP_UNACCEPTABLE = 4, /* the Accept option has another format */
	/* too many bytes or options, or a block smaller than the value */
	COAP_TOO_LONG = 5,
	COAP_CHANGED = 6, /* the value was replaced twice while it was read */
};

/* The key of a path or host name. */
struct coap_name {
	__u32 slot; /* of the listener */
	__u16 len;
	__u16 host; /* 1: a host name, 0: a path */
	__u64 bytes[COAP_MAX_PATH / 8]; /* zeros after len */
};

/* The parsed message. */
struct coap_work {
	__u8 in[COAP_AT + 1 + COAP_SLACK];
	__u64 etags[COAP_MAX_OPTIONS]; /* those of 8 bytes, the length of our own; 0: none */
	__u64 hidden;	       /* see kerb_through */
	__u32 len;	   /* of the message */
	__u32 number;	   /* of the present option */
	__u32 once;	   /* bit mask of the non-repeatable options seen */
	__u32 count;	   /* number of etags */
	__u32 path, path_end; /* offsets of the Uri-Path options, with their headers */
	__u32 host, host_len;
	__u32 port;   /* destination port of the request */
	__u32 accept; /* COAP_ANY_FORMAT: no Accept option */
	__u64 echo;   /* value of an Echo option of 8 bytes, the length of our own; 0: none */
	/* SZX of the Block2 option (RFC 7959, section 2.2); COAP_NO_BLOCK: no such option */
	__u32 block;
	struct coap_name name;
};

#define COAP_LOAD(type, w, off) (*(type *)((w)->in + ((off) & COAP_AT)))

static __always_inline int coap_pass(struct rsp_request *r, __u32 why)
{
	r->why = why;
	return RSP_PASS;
}

/* Copies the message from the packet, in units of 16 bytes, then the rest. Returns 0 or -1. */
static __noinline int coap_request_copy(struct rsp_request *r, struct coap_work *w)
{
	__u32 len = w->len, off = 0;

#pragma clang loop unroll(disable)
	for (int i = 0; i < COAP_MAX_REQUEST / 16; i++) {
		__u64 *from;

		if (off + 16 > len)
			break;
		from = kerb_request_at(&r->req, off, 16);
		if (!from)
			return -1;
		COAP_LOAD(__u64, w, off) = from[0];
		COAP_LOAD(__u64, w, off + 8) = from[1];
		off += 16;
	}
	off = kerb_through(w->hidden, off);
#define COAP_COPY_REST(type)                                              \
	if (kerb_through(w->hidden, len) & sizeof(type)) {                \
		type *from = kerb_request_at(&r->req, off, sizeof(type)); \
		if (!from)                                                \
			return -1;                                        \
		COAP_LOAD(type, w, off) = *from;                          \
		off += sizeof(type);                                      \
	}
	COAP_COPY_REST(__u64)
	COAP_COPY_REST(__u32)
	COAP_COPY_REST(__u16)
	COAP_COPY_REST(__u8)
#undef COAP_COPY_REST
	return 0;
}

/* Returns the unsigned integer in an option of up to 3 bytes. */
static __always_inline __u32 coap_uint(const struct coap_work *w, __u32 at, __u32 len)
{
	__u64 word = bpf_ntohl(COAP_LOAD(__u32, w, at));

	return word >> ((32 - 8 * len) & 63);
}

/* Checks a non-repeatable option: -1 if it is repeated (RFC 7252, section 5.4.5) or longer than
 * most. */
static __always_inline int coap_option_once(struct coap_work *w, __u32 bit, __u32 len, __u32 most)
{
	if (len > most || w->once & bit)
		return -1;
	w->once |= bit;
	return 0;
}

static __always_inline int coap_block_parse(struct coap_work *w, __u32 at, __u32 len)
{
	__u32 value = coap_uint(w, at, len);

	w->block = value & 7;
	return value >> 4 || w->block == 7 ? -1 : 0;
}

/* Parses the option whose header is at `head` and whose value is at `at`. Returns -1 if the request
 * has to pass. */
static __always_inline int coap_option_parse(struct coap_work *w, __u32 head, __u32 at, __u32 len)
{
	__u32 number = w->number;

	switch (number) {
	case COAP_URI_PATH:
		if (!w->path_end)
			w->path = head;
		w->path_end = at + len;
		return 0;
	case COAP_ETAG:
		if (len == COAP_ETAG_LEN)
			w->etags[w->count++ & (COAP_MAX_OPTIONS - 1)] = COAP_LOAD(__u64, w, at);
		return 0;
	case COAP_ACCEPT:
		w->accept = coap_uint(w, at, len);
		return coap_option_once(w, 1, len, 2);
	case COAP_BLOCK2:
		return coap_option_once(w, 2, len, 3) ?: coap_block_parse(w, at, len);
	case COAP_ECHO:
		w->echo = len == sizeof(w->echo) ? COAP_LOAD(__u64, w, at) : 0;
		return 0;
	case COAP_URI_HOST:
		w->host = at;
		w->host_len = len;
		return coap_option_once(w, 4, len, COAP_MAX_PATH) ?: -!len;
	case COAP_URI_PORT:
		return coap_option_once(w, 8, len, 2) ?: -(coap_uint(w, at, len) != w->port);
	case COAP_OBSERVE:
	case COAP_NO_RESPONSE:
		return -1;
	}
	return number & 1 ? -1 : 0; /* critical options have odd numbers */
}

/* Parses the option at off (RFC 7252, section 3.1), the header without a branch. Returns the offset
 * of the next one, or 0 if the request has to pass. A length of 269 bytes or more exceeds
 * COAP_MAX_REQUEST. */
static __always_inline __u32 coap_option_next(struct coap_work *w, __u32 off)
{
	__u32 first = COAP_LOAD(__u8, w, off), delta = first >> 4, len = first & 15;
	__u32 delta8 = kerb_same(delta, 13), delta16 = kerb_same(delta, 14),
	      len8 = kerb_same(len, 13), at = off + 1;
	__u32 ext8 = COAP_LOAD(__u8, w, at), ext16 = ext8 << 8 | COAP_LOAD(__u8, w, at + 1);

	if (delta == 15 || len > 13)
		return 0;
	w->number += delta + delta8 * ext8 + delta16 * (269 - 14 + ext16);
	at += delta8 + 2 * delta16;
	len += len8 * COAP_LOAD(__u8, w, at);
	at += len8;
	if (at + len > w->len || w->number > 0xffff)
		return 0;
	return coap_option_parse(w, off, at, len) ? 0 : at + len;
}

/* Parses header, token and options. Returns 0, or -1 and sets r->why. */
static __always_inline int coap_request_parse(struct rsp_request *r, struct coap_work *w)
{
	__u32 head = COAP_LOAD(__u8, w, 0), off = 4 + (head & 15);

	r->why = COAP_NO_GET;
	if ((head & COAP_VERSION_TYPE) != 0x40 || (head & 15) > 8 ||
	    COAP_LOAD(__u8, w, 1) != COAP_GET || off > w->len)
		return -1;
	r->why = COAP_OPTION;
#pragma clang loop unroll(disable)
	for (int i = 0; i < COAP_MAX_OPTIONS; i++) {
		if (off >= w->len)
			return 0;
		if (COAP_LOAD(__u8, w, off) == COAP_PAYLOAD) {
			r->why = COAP_NO_GET;
			return -1;
		}
		off = coap_option_next(w, off) & COAP_AT;
		if (!off)
			return -1;
	}
	r->why = COAP_TOO_LONG;
	return off == w->len ? 0 : -1;
}

#endif
