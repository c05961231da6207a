// SPDX-License-Identifier: Apache-2.0
/* The sender: a fixed rate of packets for a time, at high priority, since it is not what is
 * measured. Batches are sent at absolute times, and late ones are caught up, so that the rate is
 * exact. It prints one JSON object when all packets are sent, and then repeats the message that
 * ends the measurement until it is killed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "meter.h"

enum {
	PRIORITY = 80,
	BATCH = 64,
	MAX_SIZE = 1472,
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
		       sizeof(one))) /* the program at the hook writes T1 into the packet */
		die("connect");
	for (int i = 0; i < BATCH; i++) {
		messages[i] = calloc(1, MAX_SIZE);
		iov[i] = (struct iovec){ messages[i], size };
		out[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
}

/* ignore_refused ignores ECONNREFUSED: an earlier packet met no receiver. */
static void ignore_refused(void)
{
	if (errno != ECONNREFUSED)
		die("send");
}

static void send_marker(uint32_t type)
{
	struct message m = { .type = type, .created = now_ns() };

	while (send(fd, &m, sizeof(m), 0) < 0)
		ignore_refused();
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
		messages[i]->created = now_ns();
	}
	for (int done = 0; done < n;) {
		int sent = sendmmsg(fd, out + done, n - done, 0);

		if (sent < 0)
			ignore_refused();
		else
			done += sent;
	}
}

static void send_all(uint64_t packets, double gap)
{
	int batch = gap >= STEP_NS ? 1 : (int)(STEP_NS / gap);
	int64_t begin = now_ns();

	batch = batch > BATCH ? BATCH : batch;
	for (uint64_t sent = 0; sent < packets; sent += batch) {
		sleep_until(begin + (int64_t)(sent * gap));
		send_batch(sent, packets - sent < (uint64_t)batch ? (int)(packets - sent) : batch);
	}
}

/* sender ADDRESS PORT SIZE PACKETS-PER-SECOND MILLISECONDS CPU; a rate of 0 sends the beginning and
 * the end only. */
int main(int argc, char **argv)
{
	struct sched_param first = { .sched_priority = PRIORITY };

	if (argc != 7)
		return 2;
	int size = atoi(argv[3]);
	double rate = atof(argv[4]), seconds = atof(argv[5]) / 1e3;
	uint64_t packets = (uint64_t)(rate * seconds);

	if (size < (int)sizeof(struct message) || size > MAX_SIZE)
		return 2;
	pin_thread(atoi(argv[6]));
	open_socket(argv[1], atoi(argv[2]), size);
	if (mlockall(MCL_CURRENT | MCL_FUTURE) || sched_setscheduler(0, SCHED_FIFO, &first))
		die("priority");
	send_marker(MESSAGE_BEGIN);
	sleep_until(now_ns() + PAUSE_NS / 4);

	int64_t begin = now_ns();

	if (packets)
		send_all(packets, 1e9 / rate);
	sleep_until(begin + (int64_t)(seconds * 1e9));
	printf("{\"sent\":%lu,\"seconds\":%.6f}\n", packets, (now_ns() - begin) / 1e9);
	fflush(stdout);
	for (uint64_t n = 0;; n++, sleep_until(now_ns() + PAUSE_NS))
		send(fd, &(struct message){ .type = MESSAGE_END, .number = n },
		     sizeof(struct message), 0);
}
