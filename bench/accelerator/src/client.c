// SPDX-License-Identifier: Apache-2.0
/* Pings a server with messages of a size, often or rarely, streams to it, or holds many
 * connections; prints what it saw as JSON. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/stat.h>

#include "histogram.h"
#include "wire.h"

static struct address server;

static int join(void)
{
	int fd = socket(server.any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &server.any, server.size))
		die("connect");
	return fd;
}

/* stamp writes a number where a wrong or late answer would show it: at both ends of a message. */
static void stamp(char *message, size_t size, uint64_t number)
{
	memcpy(message, &number, sizeof(number));
	memcpy(message + size - sizeof(number), &number, sizeof(number));
}

static void ping(int fd, char *out, char *in, size_t size, uint64_t number)
{
	stamp(out, size, number);
	if (write_all(fd, out, size) != size || read_all(fd, in, size) != size)
		die("ping");
	if (memcmp(in, out, sizeof(number)) ||
	    memcmp(in + size - sizeof(number), out + size - sizeof(number), sizeof(number))) {
		fprintf(stderr, "ping %lu came back wrong\n", number);
		exit(1);
	}
}

/* echo pings for a time, a tenth of which goes by before it counts. */
static void echo(size_t size, double seconds)
{
	static struct histogram h;
	char *out = calloc(1, size), *in = calloc(1, size);
	int64_t from = now(), start = from + seconds * 1e8, end = start + seconds * 1e9, sent,
		back = from;
	uint64_t number = 0;
	int fd = join();

	no_delay(fd);
	for (; back < end || !h.n; number++) {
		sent = back; /* the moment an answer is there the next request leaves */
		ping(fd, out, in, size, number);
		back = now();
		if (sent < start)
			from = back;
		else
			record(&h, back - sent);
	}
	printf("{");
	print_times(&h);
	printf("\"n\":%lu,\"seconds\":%.9f,\"all\":%lu}\n", h.n, (back - from) / 1e9, number);
}

/* stream sends bytes by writes of a size and waits until all have come. */
static void stream(size_t size, uint64_t bytes, int file)
{
	int64_t start = now();
	char *out = calloc(1, size);
	struct length length = { bytes }, came = { 0 };
	int fd = join();

	memcpy(out, &length, sizeof(length));
	for (uint64_t left = bytes; left;) {
		size_t n = left < size ? left : size;

		if (file >= 0 && left != bytes && pread(file, out, n, bytes - left) != (ssize_t)n)
			die("file");
		if (write_all(fd, out, n) != n)
			die("stream");
		left -= n;
	}
	/* the rest, smaller than a segment, would otherwise wait for an acknowledgement that is
	 * delayed by 40 ms */
	no_delay(fd);
	if (read_all(fd, &came, sizeof(came)) != sizeof(came) || came.bytes != bytes) {
		fprintf(stderr, "%lu of %lu bytes came\n", came.bytes, bytes);
		exit(1);
	}
	printf("{\"n\":%lu,\"seconds\":%.9f}\n", bytes, (now() - start) / 1e9);
}

static void transfer(size_t size, const char *path)
{
	struct stat st;
	int file = open(path, O_RDONLY);

	if (file < 0 || fstat(file, &st))
		die(path);
	stream(size, st.st_size, file);
}

/* hold opens connections, lets both sides take some turns on each, and keeps them until its input
 * ends. */
static void hold(size_t size, int connections)
{
	enum { TURNS = 8 };
	char out[size], in[size];
	int *fds = calloc(connections, sizeof(*fds));
	int64_t start = now();

	memset(out, 0, size);
	for (int i = 0; i < connections; i++) {
		fds[i] = join();
		no_delay(fds[i]);
		ping(fds[i], out, in, size, i);
	}
	double seconds = (now() - start) / 1e9;

	for (int turn = 1; turn < TURNS; turn++)
		for (int i = 0; i < connections; i++)
			ping(fds[i], out, in, size, i);
	printf("{\"n\":%d,\"seconds\":%.9f}\n", connections, seconds);
	fflush(stdout);
	while (read(0, in, size) > 0)
		;
}

/* rare lets both sides take turns on many connections, and then pings each now and then, a time
 * after the last. */
static void rare(size_t size, double seconds)
{
	enum { CONNECTIONS = 200, TURNS = 8, PERIODS = 6 };
	static struct histogram h;
	char out[size], in[size];
	int fds[CONNECTIONS];

	memset(out, 0, size);
	for (int i = 0; i < CONNECTIONS; i++) {
		fds[i] = join();
		no_delay(fds[i]);
		for (int turn = 0; turn < TURNS; turn++)
			ping(fds[i], out, in, size, turn);
	}
	for (int i = 0; i < PERIODS * CONNECTIONS; i++) {
		if (i % CONNECTIONS == 0)
			usleep(seconds * 1e6);
		int64_t sent = now();

		ping(fds[i % CONNECTIONS], out, in, size, i);
		record(&h, now() - sent);
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
		echo(size, atof(argv[3]));
	else if (!strcmp(argv[1], "rare"))
		rare(size, atof(argv[3]));
	else if (!strcmp(argv[1], "stream"))
		stream(size, strtoull(argv[3], NULL, 10), -1);
	else if (!strcmp(argv[1], "file"))
		transfer(size, argv[3]);
	else
		hold(size, atoi(argv[3]));
}
