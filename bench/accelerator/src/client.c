// SPDX-License-Identifier: Apache-2.0
/* The client: it sends messages of one size to a server and waits for the echo, continuously or
 * rarely, streams to it, or holds many connections open. Prints the results as JSON. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "histogram.h"
#include "wire.h"

static struct address server;

static int connect_server(void)
{
	int fd = socket(server.any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &server.any, server.size))
		die("connect");
	return fd;
}

/* write_number writes a number at both ends of a message, so that a wrong or late answer is
 * detected. */
static void write_number(char *message, size_t size, uint64_t number)
{
	memcpy(message, &number, sizeof(number));
	memcpy(message + size - sizeof(number), &number, sizeof(number));
}

static void ping_once(int fd, char *out, char *in, size_t size, uint64_t number)
{
	write_number(out, size, number);
	if (write_all(fd, out, size) != size || read_all(fd, in, size) != size)
		die("ping");
	if (memcmp(in, out, sizeof(number)) ||
	    memcmp(in + size - sizeof(number), out + size - sizeof(number), sizeof(number))) {
		fprintf(stderr, "ping %lu: wrong answer\n", number);
		exit(1);
	}
}

/* run_echo pings for a time, and records pings after a warm-up of a tenth of it. */
static void run_echo(size_t size, double seconds)
{
	static struct histogram h;
	char *out = calloc(1, size), *in = calloc(1, size);
	int64_t from = now_ns(), start = from + seconds * 1e8, end = start + seconds * 1e9, sent,
		answered = from;
	uint64_t number = 0;
	int fd = connect_server();

	set_nodelay(fd);
	for (; answered < end || !h.n; number++) {
		sent = answered; /* the next request leaves when the answer arrives */
		ping_once(fd, out, in, size, number);
		answered = now_ns();
		if (sent < start)
			from = answered;
		else
			histogram_add(&h, answered - sent);
	}
	printf("{");
	print_times(&h);
	printf("\"n\":%lu,\"seconds\":%.9f,\"all\":%lu}\n", h.n, (answered - from) / 1e9, number);
}

/* run_stream sends bytes by writes of one size, and waits until the server has received all. */
static void run_stream(size_t size, uint64_t bytes, int file)
{
	int64_t start = now_ns();
	char *out = calloc(1, size);
	struct length length = { bytes }, received = { 0 };
	int fd = connect_server();

	memcpy(out, &length, sizeof(length));
	for (uint64_t left = bytes; left;) {
		size_t n = left < size ? left : size;

		if (file >= 0 && left != bytes && pread(file, out, n, bytes - left) != (ssize_t)n)
			die("file");
		if (write_all(fd, out, n) != n)
			die("stream");
		left -= n;
	}
	/* otherwise Nagle's algorithm holds the last partial segment until an acknowledgement,
	 * which is delayed by 40 ms */
	set_nodelay(fd);
	if (read_all(fd, &received, sizeof(received)) != sizeof(received) ||
	    received.bytes != bytes) {
		fprintf(stderr, "%lu of %lu bytes arrived\n", received.bytes, bytes);
		exit(1);
	}
	printf("{\"n\":%lu,\"seconds\":%.9f}\n", bytes, (now_ns() - start) / 1e9);
}

static void run_file(size_t size, const char *path)
{
	struct stat st;
	int file = open(path, O_RDONLY);

	if (file < 0 || fstat(file, &st))
		die(path);
	run_stream(size, st.st_size, file);
}

/* run_hold opens connections, pings a few times on each, and keeps them open until end of file on
 * stdin. */
static void run_hold(size_t size, int connections)
{
	enum { PINGS = 8 };
	char out[size], in[size];
	int *fds = calloc(connections, sizeof(*fds));
	int64_t start = now_ns();

	memset(out, 0, size);
	for (int i = 0; i < connections; i++) {
		fds[i] = connect_server();
		set_nodelay(fds[i]);
		ping_once(fds[i], out, in, size, i);
	}
	double seconds = (now_ns() - start) / 1e9;

	for (int n = 1; n < PINGS; n++)
		for (int i = 0; i < connections; i++)
			ping_once(fds[i], out, in, size, i);
	printf("{\"n\":%d,\"seconds\":%.9f}\n", connections, seconds);
	fflush(stdout);
	while (read(0, in, size) > 0)
		;
}

/* run_rare pings a few times on each of many connections, and then once on each in every period of
 * so many seconds. */
static void run_rare(size_t size, double seconds)
{
	enum { CONNECTIONS = 200, PINGS = 8, PERIODS = 6 };
	static struct histogram h;
	char out[size], in[size];
	int fds[CONNECTIONS];

	memset(out, 0, size);
	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = connect_server();
		set_nodelay(fds[i]);
		for (int n = 0; n < PINGS; n++)
			ping_once(fds[i], out, in, size, n);
	}
	for (int i = 0; i < PERIODS * CONNECTIONS; i++) {
		if (i % CONNECTIONS == 0)
			usleep(seconds * 1e6);
		int64_t sent = now_ns();

		ping_once(fds[i % CONNECTIONS], out, in, size, i);
		histogram_add(&h, now_ns() - sent);
		usleep(1000);
	}
	printf("{");
	print_times(&h);
	printf("\"n\":%lu,\"seconds\":%.9f,\"all\":%lu}\n", h.n, seconds, h.n);
}

/* client echo|rare|stream|file|hold SIZE SECONDS|SECONDS|BYTES|FILE|CONNECTIONS unix|HOST
 * PATH|PORT */
int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	size_t size = strtoul(argv[2], NULL, 10);

	server = parse_address(argv[4], argv[5]);
	if (!strcmp(argv[1], "echo"))
		run_echo(size, atof(argv[3]));
	else if (!strcmp(argv[1], "rare"))
		run_rare(size, atof(argv[3]));
	else if (!strcmp(argv[1], "stream"))
		run_stream(size, strtoull(argv[3], NULL, 10), -1);
	else if (!strcmp(argv[1], "file"))
		run_file(size, argv[3]);
	else
		run_hold(size, atoi(argv[3]));
}
