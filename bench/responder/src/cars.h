// SPDX-License-Identifier: Apache-2.0
/* A part of the client: `cars` has cars arrive and leave at random and knows the right limit for
 * each of them, to compare the answers with. */
#pragma once

enum {
	CARS = 65,		/* in range, on average */
	SETTLE_NS = 1100000000, /* longer than an interval of mode mixed */
	LIMITS = 121
};

static uint64_t chance = 1;

/* uniform returns a number above 0 and up to 1 (xorshift64*). */
static double uniform(void)
{
	chance ^= chance >> 12;
	chance ^= chance << 25;
	chance ^= chance >> 27;
	return ((chance * 2685821657736338717ULL >> 11) + 1) * 0x1p-53;
}

struct road {
	int fd;
	uint32_t cars;
	int64_t until[LIMITS]; /* when a limit was last the right one */
	uint64_t errors[LIMITS], off;
	double error_sum;
	struct histogram ages;
	struct totals totals;
};

static void move_cars(struct road *r, int by)
{
	r->until[limit(r->cars)] = now();
	r->cars += by;
}

/* arrive asks for the limit; its age is the time since it was the right one. */
static void arrive(struct road *r, bool counted)
{
	struct speed m = { 0 };
	int64_t before;

	move_cars(r, 1);
	before = now();
	say(r->fd, GET_SPEED_LIMIT);
	r->totals.sent += counted;
	if (recv(r->fd, &m, sizeof(m), 0) != sizeof(m) || !counted)
		return;
	r->totals.answered++;
	if (!right_speed((void *)&m, sizeof(m))) {
		r->totals.wrong++;
		return;
	}
	int error = abs((int)m.value - (int)limit(r->cars));
	int64_t since = r->until[m.value] ? r->until[m.value] : r->totals.begin;

	r->off += error > 0;
	r->errors[error]++;
	r->error_sum += error;
	record(&r->ages, error ? before - since : 0);
}

static void leave_road(struct road *r)
{
	move_cars(r, -1);
	say(r->fd, OUT_OF_RANGE);
}

static int error_percentile(const struct road *r, double p)
{
	uint64_t seen = 0, rank = ceil(p / 100 * r->totals.answered);
	int error = 0;

	for (int i = 0; i < LIMITS && seen < rank; i++) {
		seen += r->errors[i];
		error = i;
	}
	return error;
}

static void print_road(struct road *r)
{
	double n = r->totals.answered ? r->totals.answered : 1;

	putchar('{');
	print_times(&r->ages);
	printf("\"off\":%lu,\"errorMean\":%.4f,\"errorP99\":%d,\"errorMax\":%d,", r->off,
	       r->error_sum / n, error_percentile(r, 99), error_percentile(r, 100));
	print_totals(&r->totals);
}

/* run_cars: arrivals at a rate, and as many departures on average, both without memory. */
static void run_cars(int seed, double rate)
{
	struct road *r = allocate(1, sizeof(*r));
	double leaving = rate / CARS; /* of each car, 1/s */
	int64_t due, counted, end;

	chance = seed * 0x9e3779b97f4a7c15ULL + 1;
	pin(own.list[0]);
	prctl(PR_SET_TIMERSLACK, 1);
	r->fd = open_socket(0);
	r->totals.begin = due = now();
	while (r->cars < CARS)
		arrive(r, false);
	counted = due + SETTLE_NS;
	end = counted + deadline_ns;
	for (;;) {
		double all = rate + r->cars * leaving;

		due += -log(uniform()) / all * 1e9;
		if (due >= end)
			break;
		sleep_until(due);
		if (uniform() * all <= rate)
			arrive(r, due >= counted);
		else
			leave_road(r);
	}
	r->totals.end = now();
	while (r->cars)
		leave_road(r);
	print_road(r);
}
