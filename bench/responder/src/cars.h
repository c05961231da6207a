// SPDX-License-Identifier: Apache-2.0
/* The client's mode `cars`: cars arrive and depart at random, and each answer is compared with the
 * limit for the number of cars. */
#pragma once

enum {
	CARS = 65,		/* in range, on average */
	SETTLE_NS = 1100000000, /* longer than an interval of mode mixed */
	LIMITS = 121
};

static uint64_t random_state = 1;

/* random_uniform returns a number above 0 and up to 1 (xorshift64*). */
static double random_uniform(void)
{
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return ((random_state * 2685821657736338717ULL >> 11) + 1) * 0x1p-53;
}

struct road {
	int fd;
	uint32_t cars;
	int64_t valid_until[LIMITS]; /* when a limit was last the current one */
	uint64_t errors[LIMITS], wrong_limits;
	double error_sum;
	struct histogram ages;
	struct totals totals;
};

static void add_cars(struct road *r, int by)
{
	r->valid_until[speed_limit(r->cars)] = now_ns();
	r->cars += by;
}

/* car_arrive requests the limit. The age of the answer is the time since it was the current one. */
static void car_arrive(struct road *r, bool counted)
{
	struct speed m = { 0 };
	int64_t before;

	add_cars(r, 1);
	before = now_ns();
	send_op(r->fd, GET_SPEED_LIMIT);
	r->totals.sent += counted;
	if (recv(r->fd, &m, sizeof(m), 0) != sizeof(m) || !counted)
		return;
	r->totals.answered++;
	if (!valid_speed((void *)&m, sizeof(m))) {
		r->totals.wrong++;
		return;
	}
	int error = abs((int)m.value - (int)speed_limit(r->cars));
	int64_t since = r->valid_until[m.value] ? r->valid_until[m.value] : r->totals.begin;

	r->wrong_limits += error > 0;
	r->errors[error]++;
	r->error_sum += error;
	histogram_add(&r->ages, error ? before - since : 0);
}

static void car_depart(struct road *r)
{
	add_cars(r, -1);
	send_op(r->fd, OUT_OF_RANGE);
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
	printf("\"off\":%lu,\"errorMean\":%.4f,\"errorP99\":%d,\"errorMax\":%d,", r->wrong_limits,
	       r->error_sum / n, error_percentile(r, 99), error_percentile(r, 100));
	print_totals(&r->totals);
}

/* run_cars generates arrivals and departures as Poisson processes of the same mean rate. */
static void run_cars(int seed, double rate)
{
	struct road *r = allocate(1, sizeof(*r));
	double leaving = rate / CARS; /* of each car, 1/s */
	int64_t due, counted, end;

	random_state = seed * 0x9e3779b97f4a7c15ULL + 1;
	pin_thread(own.list[0]);
	prctl(PR_SET_TIMERSLACK, 1);
	r->fd = open_socket(0);
	r->totals.begin = due = now_ns();
	while (r->cars < CARS)
		car_arrive(r, false);
	counted = due + SETTLE_NS;
	end = counted + deadline_ns;
	for (;;) {
		double all = rate + r->cars * leaving;

		due += -log(random_uniform()) / all * 1e9;
		if (due >= end)
			break;
		sleep_until(due);
		if (random_uniform() * all <= rate)
			car_arrive(r, due >= counted);
		else
			car_depart(r);
	}
	r->totals.end = now_ns();
	while (r->cars)
		car_depart(r);
	print_road(r);
}
