// SPDX-License-Identifier: Apache-2.0
/* The clients of the controller: sensors that send CTRL, DATA and LOG messages at their rates, each
 * kind from several sockets, so that the kernel sees different senders. They receive the
 * controller's instructions, which contain the message that they answer. Each kind has a thread,
 * CTRL with the highest priority, since a real sensor is a separate device: it does not send the
 * messages of others before it receives its instruction. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "controller.h"

enum {
	SENSOR_PRIORITY = 84, /* of LOG */
	SENSORS = 4,
	MAX_SIZE = 1472,
	STEP_NS = 100000,
	BEFORE_NS = 5000000,
	AFTER_NS = 30000000
};

/* The period of CTRL is a little over 1 ms, so that its phase against the others varies. */
static struct stream {
	int size;
	double gap; /* ns */
	int fd[SENSORS];
	uint64_t sent, answered, unsent;
	struct histogram round_trips;
	struct message *out;
} streams[KINDS] = { { .size = 64, .gap = 1003000 },
		     { .size = 512, .gap = 1e9 / 6000 },
		     { .size = 64, .gap = 1e9 / 50000 } };

static int64_t begin, end;

static void open_sockets(struct stream *s, const char *address, int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1;

	s->out = calloc(1, MAX_SIZE);
	for (int i = 0; i < SENSORS; i++) {
		s->fd[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
		if (s->fd[i] < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1 ||
		    connect(s->fd[i], (void *)&to, sizeof(to)) ||
		    setsockopt(s->fd[i], SOL_SOCKET, SO_NO_CHECK, &one, sizeof(one)))
			die("connect");
	}
}

static void send_one(struct stream *s)
{
	*s->out = (struct message){ .client = s->sent % SENSORS,
				    .type = FIRST_KIND + (s - streams),
				    .number = s->sent,
				    .created = now_ns() };
	s->unsent += send(s->fd[s->sent % SENSORS], s->out, s->size, 0) < 0;
	s->sent++;
}

static void receive_instructions(struct stream *s, int64_t until)
{
	struct pollfd in[SENSORS];
	int n = s == &streams[LOG] ? 0 : SENSORS; /* LOG gets none */
	int64_t left = until - now_ns();
	struct timespec wait = { 0, left > 0 ? left : 0 };
	struct message m;

	for (int i = 0; i < n; i++)
		in[i] = (struct pollfd){ .fd = s->fd[i], .events = POLLIN };
	if (ppoll(in, n, &wait, NULL) <= 0)
		return;
	for (int i = 0; i < n; i++)
		while (in[i].revents && recv(in[i].fd, &m, sizeof(m), 0) == sizeof(m)) {
			histogram_add(&s->round_trips, now_ns() - m.created);
			s->answered++;
		}
}

/* send_due sends the messages that are due and returns when the next one is. Several are due at
 * high rates, or after the sensor was preempted. It receives instructions in between, which would
 * otherwise wait. */
static int64_t send_due(struct stream *s)
{
	while (begin + s->sent * s->gap <= now_ns()) {
		send_one(s);
		if (s != &streams[LOG])
			receive_instructions(s, 0);
	}
	/* in batches at high rates */
	return begin + s->sent * s->gap + (s->gap < STEP_NS ? STEP_NS - s->gap : 0);
}

/* set_sensor_priority applies to the calling thread and to those that it starts. */
static void set_sensor_priority(int kind)
{
	struct sched_param p = { SENSOR_PRIORITY + LOG - kind };

	if (sched_setscheduler(0, SCHED_FIFO, &p))
		die("priority");
}

static void *run_sensor(void *arg)
{
	struct stream *s = arg;

	set_sensor_priority(s - streams);
	while (now_ns() < end)
		receive_instructions(s, send_due(s));
	while (now_ns() < end + AFTER_NS)
		receive_instructions(s, end + AFTER_NS);
	return NULL;
}

static void print_stream(const char *name, const struct stream *s)
{
	printf("\"%s\":{\"sent\":%lu,\"unsent\":%lu,\"answered\":%lu,", name, s->sent, s->unsent,
	       s->answered);
	print_times(&s->round_trips);
	print_bins(&s->round_trips);
	printf("}");
}

/* client ADDRESS PORT-OF-CTRL PORT-OF-DATA PORT-OF-LOG KINDS MILLISECONDS CPU */
int main(int argc, char **argv)
{
	pthread_t threads[KINDS];

	if (argc != 8)
		return 2;
	int kinds = atoi(argv[5]);

	pin_thread(atoi(argv[7]));
	for (int i = 0; i < KINDS; i++)
		open_sockets(&streams[i], argv[1], atoi(argv[2 + i]));
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		die("lock memory");
	set_sensor_priority(CTRL); /* so that no thread is preempted before it has its own */
	begin = now_ns() + BEFORE_NS;
	end = begin + atoi(argv[6]) * 1000000LL;
	for (int i = 0; i < kinds; i++)
		if (pthread_create(&threads[i], NULL, run_sensor, &streams[i]))
			die("thread");
	for (int i = 0; i < kinds; i++)
		pthread_join(threads[i], NULL);
	printf("{\"seconds\":%.6f,", (end - begin) / 1e9);
	for (int i = 0; i < KINDS; i++) {
		print_stream(names[i], &streams[i]);
		printf(i == KINDS - 1 ? "}\n" : ",");
	}
	return 0;
}
