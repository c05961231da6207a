// SPDX-License-Identifier: Apache-2.0
/* The mix of memtier_benchmark with its defaults, for machines without it: on each connection one
 * request at a time, a SET and then ten GETs, of 32 bytes at random ones of 10,000,000 keys. */
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
	c->sent = now();
	if (write_all(c->fd, request, n) != (size_t)n)
		die("send");
}

/* reply_size is 0 until the reply has begun, and otherwise its size. */
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

/* take reports whether the connection has all its answers. */
static int take(struct worker *w, struct connection *c)
{
	ssize_t n = read(c->fd, c->reply + c->got, sizeof(c->reply) - c->got);

	if (n <= 0)
		die("reply");
	c->got += n;
	if (!reply_size(c) || c->got < reply_size(c))
		return 0;
	record(&w->h, now() - c->sent);
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
	no_delay(c->fd);
	if (epoll_ctl(events, EPOLL_CTL_ADD, c->fd,
		      &(struct epoll_event){ .events = EPOLLIN, .data.ptr = c }))
		die("epoll");
}

static void *work(void *arg)
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
			left -= take(w, ready[i].data.ptr);
	}
	return NULL;
}

/* memtier THREADS CONNECTIONS REQUESTS unix|HOST PATH|PORT: connections of a thread, requests of a
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
	int64_t start = now();

	for (int i = 0; i < threads; i++) {
		workers[i].random = 88172645463325252 + i;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			die("thread");
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		merge(&all, &workers[i].h);
	}
	printf("{");
	print_times(&all);
	printf("\"n\":%lu,\"seconds\":%.9f}\n", all.n, (now() - start) / 1e9);
}
