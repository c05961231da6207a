// SPDX-License-Identifier: Apache-2.0
/* The default load of memtier_benchmark, for machines without it: on each connection one request at
 * a time, one SET and then ten GETs, values of 32 bytes, random keys out of 10,000,000. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/epoll.h>

#include "histogram.h"
#include "wire.h"

enum { CYCLE = 11, KEYS = 10000000, SIZE = 32, EVENTS = 64 };

struct connection {
	int fd, done;
	int64_t sent;
	size_t got;
	char reply[128];
};

struct worker {
	pthread_t thread;
	uint64_t random;
	struct histogram h;
};

static struct address server;
static int connections, requests;

static uint32_t next_key(struct worker *w) /* xorshift64 */
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random % KEYS + 1;
}

static void send_request(struct worker *w, struct connection *c)
{
	char key[32], request[192];
	int key_size = sprintf(key, "memtier-%u", next_key(w)), n;

	if (c->done % CYCLE)
		n = sprintf(request, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", key_size, key);
	else
		n = sprintf(request, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%0*d\r\n", key_size,
			    key, SIZE, SIZE, c->done);
	c->got = 0;
	c->sent = now_ns();
	if (write_all(c->fd, request, n) != (size_t)n)
		die("send");
}

/* reply_size returns the size of the reply, or 0 until enough of it has arrived. */
static size_t reply_size(struct connection *c)
{
	static const char value[] = "$32\r\n", absent[] = "$-1\r\n", stored[] = "+OK\r\n";
	int set = c->done % CYCLE == 0;

	if (c->got < sizeof(value) - 1)
		return 0;
	if (set ? !memcmp(c->reply, stored, sizeof(stored) - 1) :
		  !memcmp(c->reply, absent, sizeof(absent) - 1))
		return sizeof(stored) - 1;
	if (!set && !memcmp(c->reply, value, sizeof(value) - 1))
		return sizeof(value) - 1 + SIZE + 2;
	fprintf(stderr, "redis answers %.*s\n", (int)c->got, c->reply);
	exit(1);
}

/* receive_reply returns 1 after the last reply of the connection. */
static int receive_reply(struct worker *w, struct connection *c)
{
	ssize_t n = read(c->fd, c->reply + c->got, sizeof(c->reply) - c->got);

	if (n <= 0)
		die("reply");
	c->got += n;
	if (!reply_size(c) || c->got < reply_size(c))
		return 0;
	histogram_add(&w->h, now_ns() - c->sent);
	if (++c->done == requests)
		return 1;
	send_request(w, c);
	return 0;
}

static void open_connection(struct connection *c, int events)
{
	c->fd = socket(server.any.sa_family, SOCK_STREAM, 0);
	if (c->fd < 0 || connect(c->fd, &server.any, server.size))
		die("connect");
	set_nodelay(c->fd);
	if (epoll_ctl(events, EPOLL_CTL_ADD, c->fd,
		      &(struct epoll_event){ .events = EPOLLIN, .data.ptr = c }))
		die("epoll");
}

static void *run_worker(void *arg)
{
	struct worker *w = arg;
	struct connection *all = calloc(connections, sizeof(*all));
	struct epoll_event ready[EVENTS];
	int events = epoll_create1(0), left = connections;

	for (int i = 0; i < connections; i++)
		open_connection(&all[i], events);
	for (int i = 0; i < connections; i++)
		send_request(w, &all[i]);
	while (left) {
		int n = epoll_wait(events, ready, EVENTS, -1);

		for (int i = 0; i < n; i++)
			left -= receive_reply(w, ready[i].data.ptr);
	}
	return NULL;
}

/* memtier THREADS CONNECTIONS REQUESTS unix|HOST PATH|PORT: connections per thread, requests per
 * connection */
int main(int argc, char **argv)
{
	static struct histogram all;

	if (argc != 6)
		return 2;
	int threads = atoi(argv[1]);
	struct worker *workers = calloc(threads, sizeof(*workers));

	connections = atoi(argv[2]);
	requests = atoi(argv[3]);
	server = parse_address(argv[4], argv[5]);
	int64_t start = now_ns();

	for (int i = 0; i < threads; i++) {
		workers[i].random = 88172645463325252 + i;
		if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]))
			die("thread");
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		histogram_merge(&all, &workers[i].h);
	}
	printf("{");
	print_times(&all);
	printf("\"n\":%lu,\"seconds\":%.9f}\n", all.n, (now_ns() - start) / 1e9);
}
