// SPDX-License-Identifier: Apache-2.0
/* The protocols of the experiment, for client and servers. */
#pragma once

#include <arpa/inet.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base.h"

enum { MAX_MESSAGE = 64 };

/* work/N is a request for N steps of arithmetic. */
enum protocol { SPEED, COAP, WORK };

static inline enum protocol parse_protocol(const char *name)
{
	return !strcmp(name, "coap") ? COAP : !strncmp(name, "work", 4) ? WORK : SPEED;
}

/* The published protocol: two words in the byte order of the sender. */
enum { REPLY = 3, GET_SPEED_LIMIT = 4, OUT_OF_RANGE = 5 };
struct speed {
	uint32_t op, value;
};

/* One CoAP resource (RFC 7252): GET coap://.../sensors/road-sign-7/speed-limit returns text. The
 * request is longer than the reply, since a veth has almost no tailroom for programs, unlike most
 * devices. */
#define COAP_VALUE "120"
enum {
	COAP_VERSION = 0x40,
	COAP_ACK = 0x20,
	COAP_GET = 0x01,
	COAP_PUT = 0x03,
	COAP_CHANGED = 0x44,
	COAP_CONTENT = 0x45,
	COAP_NOT_FOUND = 0x84,
	COAP_CONTENT_FORMAT = 0xc0,
	COAP_MARKER = 0xff,
	COAP_TOKEN = 4
};
/* Uri-Path options */
static const uint8_t coap_path[] = "\xb7sensors\x0broad-sign-7\x0bspeed-limit";

/* speed_limit is the published curve over the number of cars in range, in km/h. */
static inline uint32_t speed_limit(uint32_t cars)
{
	if (cars < 30)
		return 120;
	if (cars >= 100)
		return 30;
	return lround(45 * cos(M_PI / 70 * (cars - 30)) + 75);
}

static atomic_uint cars;

static inline void decrement_cars(void)
{
	unsigned int c = atomic_load_explicit(&cars, memory_order_relaxed);

	while (c && !atomic_compare_exchange_weak(&cars, &c, c - 1))
		;
}

/* answer_speed writes the reply to a request of n bytes and returns its length, or 0 for none. */
static inline size_t answer_speed(const void *in, size_t n, void *out)
{
	struct speed m;

	if (n != sizeof(m))
		return 0;
	memcpy(&m, in, n);
	if (m.op == OUT_OF_RANGE)
		decrement_cars();
	if (m.op != GET_SPEED_LIMIT)
		return 0;
	m = (struct speed){
		REPLY, speed_limit(atomic_fetch_add_explicit(&cars, 1, memory_order_relaxed) + 1)
	};
	memcpy(out, &m, sizeof(m));
	return sizeof(m);
}

/* The value as text: three digits in memory order. A PUT replaces it. */
static atomic_uint coap_text;

static inline void set_coap_value(const void *digits)
{
	uint32_t text = 0;

	memcpy(&text, digits, 3);
	atomic_store_explicit(&coap_text, text, memory_order_relaxed);
}

/* answer_coap_put handles a PUT of the value: the request for it, followed by three digits. */
static inline size_t answer_coap_put(const uint8_t *in, size_t n, size_t head, uint8_t *out)
{
	size_t path = sizeof(coap_path) - 1;

	if (n != head + path + 4 || memcmp(in + head, coap_path, path) ||
	    in[head + path] != COAP_MARKER)
		return 0;
	set_coap_value(in + head + path + 1);
	memcpy(out, in, head);
	out[0] |= COAP_ACK;
	out[1] = COAP_CHANGED;
	return head;
}

/* answer_coap accepts requests without other options; the response is piggybacked on the ACK. */
static inline size_t answer_coap(const uint8_t *in, size_t n, uint8_t *out)
{
	size_t token = n < 4 ? 0 : in[0] & 0x0f, head = 4 + token, path = sizeof(coap_path) - 1;

	if (n < head + 1 || (in[0] & 0xf0) != COAP_VERSION || token > 8)
		return 0;
	if (in[1] == COAP_PUT)
		return answer_coap_put(in, n, head, out);
	if (in[1] != COAP_GET)
		return 0;
	memcpy(out, in, head); /* message id and token */
	out[0] |= COAP_ACK;
	if (n != head + path || memcmp(in + head, coap_path, path)) {
		out[1] = COAP_NOT_FOUND;
		return head;
	}
	out[1] = COAP_CONTENT;
	out[head] = COAP_CONTENT_FORMAT; /* empty: text/plain */
	out[head + 1] = COAP_MARKER;
	uint32_t text = atomic_load_explicit(&coap_text, memory_order_relaxed);

	memcpy(out + head + 2, text ? (const void *)&text : COAP_VALUE, sizeof(COAP_VALUE) - 1);
	return head + 2 + sizeof(COAP_VALUE) - 1;
}

enum { MAX_STEPS = 131072 };

/* compute_work runs steps of xorshift, each on the result of the previous one, as
 * ../../kerbmods/work does. */
static inline uint32_t compute_work(uint32_t steps)
{
	uint64_t x = 88172645463325252ULL;

	for (uint32_t i = 0; i < steps; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
	}
	return x;
}

/* answer_work computes the result for every request: VALUE is the number of steps. */
static inline size_t answer_work(const void *in, size_t n, void *out)
{
	struct speed m;

	if (n != sizeof(m))
		return 0;
	memcpy(&m, in, n);
	if (m.op != GET_SPEED_LIMIT || m.value > MAX_STEPS)
		return 0;
	m = (struct speed){ REPLY, compute_work(m.value) };
	memcpy(out, &m, sizeof(m));
	return sizeof(m);
}

static inline size_t answer_request(enum protocol p, const void *in, size_t n, void *out)
{
	return p == COAP ? answer_coap(in, n, out) :
	       p == WORK ? answer_work(in, n, out) :
			   answer_speed(in, n, out);
}

/* The client's steps and their result, from the name of the protocol. */
static uint32_t work_steps, work_result;

static inline void prepare_work(const char *name)
{
	work_steps = strchr(name, '/') ? atoi(strchr(name, '/') + 1) : 0;
	work_result = compute_work(work_steps);
}

/* write_request returns the length of the request. Only CoAP carries the number. */
static inline size_t write_request(enum protocol p, uint32_t number, uint8_t *out)
{
	size_t path = sizeof(coap_path) - 1;

	if (p != COAP) {
		memcpy(out, &(struct speed){ GET_SPEED_LIMIT, p == WORK ? work_steps : 0 },
		       sizeof(struct speed));
		return sizeof(struct speed);
	}
	out[0] = COAP_VERSION | COAP_TOKEN;
	out[1] = COAP_GET;
	out[2] = number >> 8;
	out[3] = number;
	for (int i = 0; i < COAP_TOKEN; i++)
		out[4 + i] = number >> 8 * i;
	memcpy(out + 8, coap_path, path);
	return 8 + path;
}

static inline bool valid_speed(const uint8_t *in, size_t n)
{
	struct speed m;

	if (n != sizeof(m))
		return false;
	memcpy(&m, in, sizeof(m));
	return m.op == REPLY && m.value >= 30 && m.value <= 120;
}

/* on_curve reports whether an answer is valid and between the lowest and the highest limit. */
static inline bool on_curve(const uint8_t *in, size_t n)
{
	struct speed m;

	memcpy(&m, in, sizeof(m));
	return valid_speed(in, n) && m.value > 30 && m.value < 120;
}

static inline bool valid_work(const uint8_t *in, size_t n)
{
	struct speed m;

	if (n != sizeof(m))
		return false;
	memcpy(&m, in, sizeof(m));
	return m.op == REPLY && m.value == work_result;
}

static inline bool valid_coap(const uint8_t *in, size_t n)
{
	size_t value = sizeof(COAP_VALUE) - 1;

	return n > 8 + value && in[0] == (COAP_VERSION | COAP_ACK | COAP_TOKEN) &&
	       in[1] == COAP_CONTENT && in[3] == in[4] && in[2] == in[5] &&
	       !memcmp(in + n - value, COAP_VALUE, value);
}

/* valid_answer reports whether an answer is valid for a request of write_request. */
static inline bool valid_answer(enum protocol p, const uint8_t *in, size_t n)
{
	return p == COAP ? valid_coap(in, n) : p == WORK ? valid_work(in, n) : valid_speed(in, n);
}
