// SPDX-License-Identifier: Apache-2.0
/* The client's mode `alongside`: it sends requests at a fixed rate and sleeps between batches,
 * while another thread requests the speed limit on another port 1,000 times a second. The times are
 * those of the other thread. */
#pragma once

enum { BYSTANDER_GAP_NS = 1000000, BYSTANDER_TIMEOUT_MS = 100 };
enum { SINGLE_RATE = 40000, OFFER_BATCH = 8 }; /* batches of one below that rate */

static int bystander_port; /* 0: no such thread */

/* open_bystander returns a socket with a short receive timeout. */
static int open_bystander(void)
{
	struct timeval wait = { .tv_usec = BYSTANDER_TIMEOUT_MS * 1000 };
	int fd = open_socket_to(bystander_port, 0);

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)))
		die("timeout");
	return fd;
}

static void *run_bystander(void *arg)
{
	struct requester *a = arg;
	int fd = open_bystander();

	pin_thread(a->cpu);
	prctl(PR_SET_TIMERSLACK, 1);
	request_once(fd, a, false);
	pthread_barrier_wait(&start);
	a->totals.begin = now_ns();
	for (int64_t due = a->totals.begin; due < a->totals.begin + deadline_ns;
	     due = (now_ns() > due ? now_ns() : due) + BYSTANDER_GAP_NS) {
		sleep_until(due);
		a->totals.sent++;
		if (request_once(fd, a, true)) {
			close(fd); /* the answer may come late */
			fd = open_bystander();
		}
	}
	close(fd);
	return NULL;
}

static void run_alongside(int flows, double rate)
{
	struct requester *a = allocate(1, sizeof(*a));
	struct load_sender o = { .cpu = own.list[0], .flows = flows, .rate = rate };

	*a = (struct requester){ .cpu = own.list[own.n - 1], .protocol = SPEED };
	pthread_barrier_init(&start, NULL, bystander_port ? 2 : 1);
	if (bystander_port && pthread_create(&a->thread, NULL, run_bystander, a))
		die("thread");
	pin_thread(o.cpu);
	open_flows(&o);
	pthread_barrier_wait(&start);
	send_paced(&o, rate < SINGLE_RATE ? 1 : OFFER_BATCH);
	if (bystander_port)
		pthread_join(a->thread, NULL);
	/* the timeout of a requester: a server with a lower priority may have to wait */
	drain_answers(&o, TIMEOUT_MS * 1000000L);
	o.totals.wrong += a->totals.wrong;
	putchar('{');
	print_times(&a->times);
	printf("\"bystanderSent\":%lu,\"bystanderAnswered\":%lu,", a->totals.sent,
	       a->totals.answered);
	print_totals(&o.totals);
}
