// SPDX-License-Identifier: Apache-2.0
/* The client's mode `follow`: it polls a CoAP value while another process sets it to increasing
 * numbers of three digits. For each number it prints when it was received first and last, and when
 * the last request that it answered was sent: in ns of the monotonic clock, 0 for never. It ends
 * with the last number. */
#pragma once

enum { NUMBERS = 1000, DIGITS = 3 };

struct observation {
	int64_t first, last, sent;
};

static bool following;
static atomic_bool follow_done; /* the last number was received */

/* parse_number returns the value of an answer, or -1. */
static int parse_number(const uint8_t *in, ssize_t n)
{
	int number = 0;

	for (ssize_t i = n - DIGITS; i < n; i++) {
		if (i < 9 || in[i] < '0' || in[i] > '9')
			return -1;
		number = number * 10 + in[i] - '0';
	}
	return in[0] == (COAP_VERSION | COAP_ACK | COAP_TOKEN) && in[1] == COAP_CONTENT ? number
											: -1;
}

/* record_number reports whether the answer has a number. */
static bool record_number(struct observation *all, const uint8_t *in, ssize_t n, int64_t sent,
			  int64_t at)
{
	int number = parse_number(in, n);

	if (number < 0)
		return false;
	struct observation *h = &all[number];

	if (!h->first)
		h->first = at;
	if (number == NUMBERS - 1)
		atomic_store(&follow_done, true);
	h->last = at;
	h->sent = sent;
	return true;
}

static void merge_observations(struct observation *to, const struct observation *from)
{
	for (int i = 0; i < NUMBERS; i++) {
		if (from[i].first && (!to[i].first || from[i].first < to[i].first))
			to[i].first = from[i].first;
		if (from[i].last > to[i].last)
			to[i].last = from[i].last;
		if (from[i].sent > to[i].sent)
			to[i].sent = from[i].sent;
	}
}

static void print_observations(const struct observation *all, int64_t begin)
{
	const char *comma = "";

	printf("\"begin\":%ld,\"heard\":{", begin);
	for (int i = 0; i < NUMBERS; i++) {
		if (!all[i].first)
			continue;
		printf("%s\"%d\":{\"first\":%ld,\"last\":%ld,\"sent\":%ld}", comma, i, all[i].first,
		       all[i].last, all[i].sent);
		comma = ",";
	}
	printf("},");
}
