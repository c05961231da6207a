// SPDX-License-Identifier: Apache-2.0
/* A part of the client: `follow` asks for a CoAP value that is set meanwhile, a number of three
 * digits that is higher each time, and prints when each number was heard first and last, and when
 * the last request was sent that it answered: in ns of the monotonic clock, 0 for never. The last
 * number ends it. */
#pragma once

enum { NUMBERS = 1000, DIGITS = 3 };

struct heard {
	int64_t first, last, sent;
};

static bool following;
static atomic_bool followed; /* up to the last number */

/* number_of returns the value of an answer, or -1. */
static int number_of(const uint8_t *in, ssize_t n)
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

/* note_number reports whether the answer has a number. */
static bool note_number(struct heard *all, const uint8_t *in, ssize_t n, int64_t sent, int64_t at)
{
	int number = number_of(in, n);

	if (number < 0)
		return false;
	struct heard *h = &all[number];

	if (!h->first)
		h->first = at;
	if (number == NUMBERS - 1)
		atomic_store(&followed, true);
	h->last = at;
	h->sent = sent;
	return true;
}

static void merge_heard(struct heard *to, const struct heard *from)
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

static void print_heard(const struct heard *all, int64_t begin)
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
