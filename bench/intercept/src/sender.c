// SPDX-License-Identifier: Apache-2.0
/* The sender: so many packets a second for a time, whatever else the machine has to do; it is not
 * what is measured. Batches leave on time by the clock, and what came too late is made up for, so
 * that the rate is exact. Prints one JSON object when all is sent; then repeats that this was the
 * end, until it is killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "meter.h"

enum {
	PRIORITY = 80,
	BATCH = 64,
	LONGEST = 1472,
	BUFFER = 8 << 20,
	STEP_NS = 100000,
	PAUSE_NS = 20000000
};

static int fd;
static struct message *messages[BATCH];
static struct mmsghdr out[BATCH];
static struct iovec iov[BATCH];

static void open_socket(const char *address, int port, int size)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int buffer = BUFFER, one = 1;

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || inet_pton(AF_INET, address, &to.sin_addr) != 1 ||
	    connect(fd, (void *)&to, sizeof(to)) ||
	    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &buffer, sizeof(buffer)) ||
	    setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &one,
		       sizeof(one))) /* T1 is written into the packet under way */
		die("connect");
	for (int i = 0; i < BATCH; i++) {
		messages[i] = calloc(1, LONGEST);
		iov[i] = (struct iovec){ messages[i], size };
		out[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
}

/* refused lets pass that a packet before this one met no receiver: the error is of that one. */
static void refused(void)
{
	if (errno != ECONNREFUSED)
		die("send");
}

static void say(uint32_t type)
{
	struct message m = { .type = type, .created = now() };

	while (send(fd, &m, sizeof(m), 0) < 0)
		refused();
}

static void sleep_until(int64_t t)
{
	struct timespec at = { t / 1000000000, t % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
		;
}

static void send_batch(uint64_t first, int n)
{
	for (int i = 0; i < n; i++) {
		messages[i]->type = MESSAGE_DATA;
		messages[i]->number = first + i;
		messages[i]->created = now();
	}
	for (int done = 0; done < n;) {
		int sent = sendmmsg(fd, out + done, n - done, 0);

		if (sent < 0)
			refused();
		else
			done += sent;
	}
}

static void send_all(uint64_t packets, double gap)
{
	int batch = gap >= STEP_NS ? 1 : (int)(STEP_NS / gap);
	int64_t begin = now();

	batch = batch > BATCH ? BATCH : batch;
	for (uint64_t sent = 0; sent < packets; sent += batch) {
		sleep_until(begin + (int64_t)(sent * gap));
		send_batch(sent, packets - sent < (uint64_t)batch ? (int)(packets - sent) : batch);
	}
}

/* sender ADDRESS PORT SIZE PACKETS-PER-SECOND MILLISECONDS CPU; a rate of 0 is nothing but the
 * beginning and the end. */
int main(int argc, char **argv)
{
	struct sched_param first = { .sched_priority = PRIORITY };

	if (argc != 7)
		return 2;
	int size = atoi(argv[3]);
	double rate = atof(argv[4]), seconds = atof(argv[5]) / 1e3;
	uint64_t packets = (uint64_t)(rate * seconds);

	if (size < (int)sizeof(struct message) || size > LONGEST)
		return 2;
	pin(atoi(argv[6]));
	open_socket(argv[1], atoi(argv[2]), size);
	if (mlockall(MCL_CURRENT | MCL_FUTURE) || sched_setscheduler(0, SCHED_FIFO, &first))
		die("priority");
	say(MESSAGE_BEGIN);
	sleep_until(now() + PAUSE_NS / 4);

	int64_t begin = now();

	if (packets)
		send_all(packets, 1e9 / rate);
	sleep_until(begin + (int64_t)(seconds * 1e9));
	printf("{\"sent\":%lu,\"seconds\":%.6f}\n", packets, (now() - begin) / 1e9);
	fflush(stdout);
	for (uint64_t n = 0;; n++, sleep_until(now() + PAUSE_NS))
		send(fd, &(struct message){ .type = MESSAGE_END, .number = n },
		     sizeof(struct message), 0);
}
