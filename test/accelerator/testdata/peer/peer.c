// SPDX-License-Identifier: Apache-2.0
/*
 * Two processes that communicate over TCP in all ways that programs use, and check every byte. The
 * content of a conversation follows from its seed, which the first sender sends as its first eight
 * bytes. Byte n of a direction is a function of seed, direction and n, so that a byte that is lost,
 * repeated, out of order or of another connection is detected.
 *
 *   peer [options] serve PORT                          serve conversations: on PORT the client sends
 *                                                      first, on PORT+1 the server; until stdin ends
 *   peer [options] talk THREADS ADDRESS... PORT        have conversations, one after the other on
 *                                                      each thread, until stdin ends
 *   peer [options] brief THREADS ADDRESS... PORT COUNT open COUNT connections of four turns
 *   peer [options] hold TURNS ADDRESS... PORT COUNT    open COUNT connections, which are idle after
 *                                                      TURNS turns, and make as many for each byte
 *                                                      on stdin, until it ends
 *
 * Options: -s SEED; -t SECONDS without a byte after which a conversation counts as hung; -c:
 * connections may be aborted; -b: block in recv, interrupted by signals, instead of poll; -f FAULT:
 * send incorrect data of this kind.
 *
 * Output: every half second "at CONVERSATIONS BYTES"; at the end "done ..." with exit status 0,
 * "wrong ..." with status 2, or "hang ..." with status 3.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (256u << 10) /* maximum bytes per call */
#define LIVE 32768	   /* concurrent conversations */
#define BRIEF (1ull << 63) /* kinds of seeds */
#define HOLD (1ull << 62)

enum { OUT, IN };
enum state { FINE, CUT };
enum fault { NO_FAULT, FLIP, LOSE, REPEAT, SWAP, MIX, STALL, EARLY };
static const char *const fault_names[] = { "none", "flip", "lose",  "repeat",
					   "swap", "mix",  "stall", "early" };

struct random {
	uint64_t state;
};

struct talk {
	int fd, file; /* file: source of sendfile */
	bool client, faulty, rests, both; /* both: sends and receives at the same time */
	uint64_t seed, at[2];	      /* bytes sent and received */
	struct random own;	      /* how this end executes the script */
	char *bytes, *wanted;	      /* CHUNK each */
	_Atomic(const char *) doing;  /* NULL: without a timeout */
	_Atomic uint64_t moved;	      /* time of the last progress, ns */
};

static struct {
	uint64_t seed, limit; /* ns */
	bool cuts, blocks, server;
	enum fault fault;
	_Atomic uint64_t talks, cut, bytes, again, live;
	_Atomic(struct talk *) talking[LIVE];
	int count;
	struct sockaddr_in6 to[8];
} all;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* mix and next: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
 * 2014). */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint64_t next(struct random *r)
{
	return mix(r->state += 0x9e3779b97f4a7c15ull);
}

static uint64_t below(struct random *r, uint64_t n)
{
	return next(r) % n;
}

/* size returns a size whose logarithm is about uniformly distributed, up to 1 << bits. */
static uint64_t size(struct random *r, int bits)
{
	return 1 + below(r, 1ull << below(r, bits + 1));
}

/* leave prints the last line, and exits. */
static _Noreturn void leave(int status, const char *format, ...)
{
	va_list args;
	flockfile(stdout);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	fflush(stdout);
	_exit(status);
}

static _Noreturn void wrong(struct talk *t, const char *what)
{
	leave(2, "wrong %s: %s, seed %#lx, %s, %s, %lu bytes sent, %lu received\n", what,
	      strerror(errno), t->seed, t->client ? "client" : "server",
	      t->doing ? t->doing : "resting", t->at[OUT], t->at[IN]);
}

static void doing(struct talk *t, const char *what)
{
	t->moved = now();
	t->doing = what;
}

/* pattern writes the bytes of a direction from an offset on. */
static void pattern(uint64_t key, uint64_t place, char *to, size_t n)
{
	for (; n && place % 8; n--, place++)
		*to++ = mix(key + place / 8) >> place % 8 * 8;
	for (; n >= 8; n -= 8, place += 8, to += 8) {
		uint64_t word = mix(key + place / 8);
		memcpy(to, &word, 8);
	}
	for (; n; n--, place++)
		*to++ = mix(key + place / 8) >> place % 8 * 8;
}

static uint64_t key(struct talk *t, int way)
{
	return mix(t->seed * 2 + (t->client == (way == OUT)));
}

/* spoil corrupts the next n bytes to send, and returns how many of them to send. */
static size_t spoil(struct talk *t, size_t n)
{
	if (!t->faulty || n < 2 || t->at[OUT] < 9000)
		return n;
	t->faulty = false;
	switch (all.fault) {
	case FLIP:
		t->bytes[below(&t->own, n)] ^= 1 << below(&t->own, 8);
		break;
	case LOSE:
		t->at[OUT]++;
		return n - 1;
	case REPEAT:
		t->at[OUT] -= n;
		break;
	case SWAP:
		pattern(key(t, OUT), t->at[OUT] + n / 2, t->bytes, n - n / 2);
		pattern(key(t, OUT), t->at[OUT], t->bytes + n - n / 2, n / 2);
		break;
	case MIX:
		pattern(key(t, OUT) + 1, t->at[OUT], t->bytes, n);
		break;
	case STALL:
		for (;;)
			pause();
	case EARLY:
		shutdown(t->fd, SHUT_WR);
		break;
	case NO_FAULT:
		break;
	}
	return n;
}

static ssize_t send_once(struct talk *t, size_t n, bool more)
{
	off_t offset = 0;
	struct iovec parts[] = { { t->bytes, n / 2 }, { t->bytes + n / 2, n - n / 2 } };
	switch (below(&t->own, 8)) {
	case 0:
		return writev(t->fd, parts, 2);
	case 1:
		return send(t->fd, t->bytes, n, more ? MSG_MORE : 0);
	case 2:
		return send(t->fd, t->bytes, n, MSG_DONTWAIT);
	case 3:
		/* In new pages: the kernel reads them later, so that their content must not change. */
		if (ftruncate(t->file, 0) || pwrite(t->file, t->bytes, n, 0) != (ssize_t)n)
			wrong(t, "file");
		return sendfile(t->fd, t->file, &offset, n);
	default:
		return write(t->fd, t->bytes, n);
	}
}

static bool gone(int error)
{
	return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT;
}

/* piece returns how many of n bytes a call is for: in half of the cases all. */
static size_t piece(struct talk *t, size_t n)
{
	size_t most = below(&t->own, 2) ? CHUNK : size(&t->own, 18);
	return n < most ? n : most;
}

/* send_some sends up to n bytes and returns how many. */
static size_t send_some(struct talk *t, size_t n, enum state *state)
{
	size_t part = piece(t, n);
	pattern(key(t, OUT), t->at[OUT], t->bytes, part);
	part = spoil(t, part);
	ssize_t sent = send_once(t, part, part < n);
	if (sent < 0 && gone(errno))
		*state = CUT;
	else if (sent < 0 && errno != EINTR && errno != EAGAIN)
		wrong(t, "send");
	if (sent <= 0)
		return 0;
	t->at[OUT] += sent;
	return sent;
}

/* receive_once may receive less than n bytes; EAGAIN only with MSG_DONTWAIT. */
static ssize_t receive_once(struct talk *t, size_t n)
{
	struct iovec parts[] = { { t->bytes, n / 2 }, { t->bytes + n / 2, n - n / 2 } };
	ssize_t got;
	int way = below(&t->own, 8);
	switch (way) {
	case 0:
		return n > 1 ? readv(t->fd, parts, 2) : read(t->fd, t->bytes, n);
	case 1: /* peeked bytes are received again */
		got = recv(t->fd, t->wanted, n, MSG_PEEK);
		if (got <= 0)
			break;
		if (recv(t->fd, t->bytes, got, MSG_DONTWAIT) != got ||
		    memcmp(t->bytes, t->wanted, got))
			wrong(t, "MSG_PEEK");
		return got;
	case 2:
		return recv(t->fd, t->bytes, n, MSG_DONTWAIT);
	default:
		got = read(t->fd, t->bytes, n);
	}
	if (got < 0 && errno == EAGAIN)
		all.again++; /* a blocking call must not return this */
	return got;
}

/* receive_some receives up to n bytes and returns how many. */
static size_t receive_some(struct talk *t, size_t n, enum state *state)
{
	size_t part = piece(t, n);
	ssize_t got = receive_once(t, part);
	if (got == 0 || (got < 0 && gone(errno)))
		*state = CUT;
	else if (got < 0 && errno != EINTR && errno != EAGAIN)
		wrong(t, "receive");
	if (got <= 0)
		return 0;
	pattern(key(t, IN), t->at[IN], t->wanted, got);
	if (memcmp(t->bytes, t->wanted, got))
		wrong(t, "byte");
	t->at[IN] += got;
	all.bytes += got;
	return got;
}

static int ready(struct talk *t, int events)
{
	struct pollfd p = { t->fd, events, 0 };
	return poll(&p, 1, 50) > 0 ? p.revents : 0;
}

/* wait_in returns when there is data to receive, or immediately with -b. */
static void wait_in(struct talk *t)
{
	struct pollfd p = { t->fd, POLLIN, 0 };
	while (!all.blocks && poll(&p, 1, -1) < 1)
		;
}

/* move sends and receives at the same time, so that neither end blocks the other. */
static enum state move(struct talk *t, uint64_t up, uint64_t down)
{
	uint64_t out = t->client ? up : down, in = t->client ? down : up;
	enum state state = FINE;
	t->both = out && in;
	bool poll = !all.blocks || t->both || below(&t->own, 4) == 0;
	doing(t, t->both ? "both" : out ? "sending" : "receiving");
	while ((out || in) && state == FINE) {
		int can =
			poll ? ready(t, (out ? POLLOUT : 0) | (in ? POLLIN : 0)) : POLLIN | POLLOUT;
		uint64_t before = out + in;
		if (out && can & (POLLOUT | POLLERR | POLLHUP))
			out -= send_some(t, t->both && out > 2048 ? 2048 : out, &state);
		if (in && state == FINE && can & (POLLIN | POLLERR | POLLHUP))
			in -= receive_some(t, in, &state);
		if (out + in != before)
			t->moved = now();
		else
			poll = true; /* for calls that do not block */
		if (below(&t->own, 512) == 0)
			usleep(below(&t->own, 5000)); /* slow */
	}
	return state;
}

static enum state turns(struct talk *t, int count, uint64_t up, uint64_t down)
{
	enum state state = FINE;
	while (count-- && state == FINE && (state = move(t, up, 0)) == FINE)
		state = move(t, 0, down);
	return state;
}

static enum state step(struct talk *t, struct random *script)
{
	uint64_t up = size(script, 16), down = size(script, 16);
	switch (below(script, 8)) {
	case 0:
		return move(t, size(script, 22), 0);
	case 1:
		return move(t, 0, size(script, 22));
	case 2:
		return move(t, size(script, 21), size(script, 21));
	default:
		return turns(t, 1 + below(script, 40), up, down);
	}
}

/* ended checks that the other side has sent all its data. */
static enum state ended(struct talk *t)
{
	ssize_t got;
	char byte;
	doing(t, "waiting for the end");
	wait_in(t);
	while ((got = recv(t->fd, &byte, 1, 0)) < 0 && (errno == EINTR || errno == EAGAIN))
		all.again += errno == EAGAIN;
	if (got > 0)
		wrong(t, "more bytes than were sent");
	return got == 0 ? FINE : CUT;
}

/* half_close lets one side end its direction while the other continues. */
static enum state half_close(struct talk *t, bool client, uint64_t rest)
{
	if (t->client == client) {
		shutdown(t->fd, SHUT_WR);
		return move(t, client ? 0 : rest, client ? rest : 0) == FINE ? ended(t) : CUT;
	}
	if (ended(t) == CUT || move(t, client ? 0 : rest, client ? rest : 0) == CUT)
		return CUT;
	return FINE;
}

/* reset aborts the connection: data until then must be correct, and the other side gets an end. */
static enum state reset(struct talk *t, struct random *script)
{
	bool client = below(script, 2), linger = below(script, 2);
	uint64_t up = size(script, 20), down = size(script, 20);
	/* A reset discards sent data that is not delivered yet: wait for an acknowledging byte. */
	if (move(t, client, !client) == CUT || move(t, !client, client) == CUT)
		return CUT;
	if (t->client != client) {
		if (move(t, up + (t->client ? 0 : 1), down + (t->client ? 1 : 0)) == FINE)
			wrong(t, "bytes that were not sent");
		return FINE;
	}
	if (move(t, client ? up / 2 : 0, client ? 0 : down / 2) == CUT)
		return CUT;
	if (linger)
		setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 },
			   sizeof(struct linger));
	return FINE;
}

static enum state finish(struct talk *t, struct random *script)
{
	switch (below(script, 4)) {
	case 0:
		return reset(t, script);
	case 1:
		return half_close(t, true, size(script, 18));
	case 2:
		return half_close(t, false, size(script, 18));
	default:
		return t->client ? FINE : ended(t);
	}
}

static enum state converse(struct talk *t)
{
	struct random script = { t->seed };
	enum state state = FINE;
	if (t->seed & BRIEF)
		return turns(t, 4, 24, 24) == FINE ? (t->client ? FINE : ended(t)) : CUT;
	for (int steps = 1 + below(&script, 6); steps && state == FINE; steps--)
		state = step(t, &script);
	return state == FINE ? finish(t, &script) : CUT;
}

static void shape(struct talk *t)
{
	int on = t->seed & (BRIEF | HOLD) || below(&t->own, 16), out = 16384 << below(&t->own, 5),
	    in = 4 * out;
	/* A receive buffer below the MSS of lo makes TCP itself wait for timers. */
	setsockopt(t->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (below(&t->own, 8) == 0)
		setsockopt(t->fd, SOL_SOCKET, SO_RCVBUF, &in, sizeof(in));
	if (below(&t->own, 8) == 0)
		setsockopt(t->fd, SOL_SOCKET, SO_SNDBUF, &out, sizeof(out));
}

static struct talk *begin(int fd, bool client)
{
	struct talk *t = calloc(1, sizeof(*t));
	t->fd = fd;
	t->client = client;
	doing(t, "beginning");
	for (int i = 0; i < LIVE; i++) {
		struct talk *none = NULL;
		if (!all.talking[i] && atomic_compare_exchange_strong(&all.talking[i], &none, t)) {
			all.live++;
			return t;
		}
	}
	leave(2, "wrong number of conversations: more than %d\n", LIVE);
}

/* greet agrees on the seed. */
static enum state greet(struct talk *t, bool first, uint64_t seed)
{
	enum state state = FINE;
	for (size_t n = 0; n < 8;) {
		if (!first)
			wait_in(t);
		ssize_t got = first ? write(t->fd, (char *)&seed + n, 8 - n)
				    : recv(t->fd, (char *)&t->seed + n, 8 - n, 0);
		if (got == 0 || (got < 0 && gone(errno)))
			return CUT;
		if (got < 0 && errno != EINTR && errno != EAGAIN)
			wrong(t, "greeting");
		n += got > 0 ? got : 0;
	}
	if (first)
		t->seed = seed;
	t->own.state = t->seed + t->client;
	t->faulty = all.fault && t->seed % 4 == 0;
	return state;
}

static void forget(struct talk *t)
{
	for (int i = 0; i < LIVE; i++) {
		struct talk *own = t;
		if (atomic_compare_exchange_strong(&all.talking[i], &own, NULL))
			break;
	}
	all.live--;
}

static void equip(struct talk *t)
{
	t->file = memfd_create("peer", MFD_CLOEXEC);
	t->bytes = malloc(CHUNK);
	t->wanted = malloc(CHUNK);
}

/* shed frees the memory that only conversations need. */
static void shed(struct talk *t)
{
	if (t->file > 0)
		close(t->file);
	free(t->bytes);
	free(t->wanted);
	t->file = 0;
	t->bytes = t->wanted = NULL;
}

static void end(struct talk *t, enum state state)
{
	if (state == CUT && !all.cuts)
		wrong(t, "end of the connection");
	all.cut += state == CUT;
	all.talks += state == FINE;
	close(t->fd);
	shed(t);
	forget(t);
	free(t);
}

/* hold leaves a connection idle after some turns. */
static enum state hold(struct talk *t)
{
	if (turns(t, t->seed & 0xffff, 24, 24) == CUT)
		return CUT;
	t->rests = true;
	doing(t, NULL);
	shed(t);
	return FINE;
}

/* held serves connections that become idle. */
static enum state held(struct talk *t)
{
	for (;;) {
		enum state state = hold(t);
		ssize_t more;
		char byte;
		wait_in(t);
		while ((more = recv(t->fd, &byte, 1, MSG_PEEK)) < 0 &&
		       (errno == EINTR || errno == EAGAIN))
			;
		if (state == CUT || more <= 0)
			return state;
		equip(t);
	}
}

static void run(struct talk *t, bool first, uint64_t seed)
{
	equip(t);
	enum state state = greet(t, first, seed);
	shape(t);
	if (state == FINE)
		state = !(t->seed & HOLD) ? converse(t) : t->client ? hold(t) : held(t);
	if (!t->rests || !t->client)
		end(t, state);
}

static void *serve_one(void *arg)
{
	struct talk *t = arg;
	bool first = t->rests; /* by the port, until the seed is known */
	static _Atomic uint64_t seeds;
	t->rests = false;
	run(t, first, mix(all.seed + ++seeds) >> 2);
	return NULL;
}

static void thread(void *(*f)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t id;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&id, &attr, f, arg))
		leave(2, "wrong number of threads\n");
}

static int listen_on(int port)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (void *)&at, sizeof(at)) || listen(fd, 4096))
		leave(2, "wrong port %d: %s\n", port, strerror(errno));
	return fd;
}

static void serve(int port)
{
	struct pollfd p[] = { { 0, POLLIN, 0 },
			      { listen_on(port), POLLIN, 0 },
			      { listen_on(port + 1), POLLIN, 0 } };
	puts("ready");
	while (!p[0].revents) {
		if (poll(p, 3, -1) <= 0)
			continue;
		for (int i = 1; i < 3; i++) {
			int fd = p[i].revents ? accept4(p[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
			if (fd < 0)
				continue;
			struct talk *t = begin(fd, false);
			t->rests = i == 2;
			thread(serve_one, t);
		}
	}
}

/* dial connects to one of the addresses; on the next port servers send first. */
static struct talk *dial(struct random *r, bool second)
{
	struct sockaddr_in6 to = all.to[below(r, all.count)];
	struct talk *t = begin(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), true);
	doing(t, "connecting");
	to.sin6_port = htons(ntohs(to.sin6_port) + second);
	while (connect(t->fd, (void *)&to, sizeof(to))) {
		if (errno == EISCONN)
			break;
		/* no listener at the moment */
		if (all.cuts && (gone(errno) || errno == ECONNREFUSED)) {
			usleep(2000);
			end(t, CUT);
			return NULL;
		}
		if (errno != EINTR && errno != EALREADY)
			wrong(t, "connect");
		ready(t, POLLOUT);
	}
	return t;
}

static struct {
	atomic_bool over;
	_Atomic int64_t left;
	_Atomic int threads;
} job;

static void *talk(void *arg)
{
	struct random r = { mix(all.seed) + mix((uintptr_t)arg) };
	while (!job.over) {
		bool second = below(&r, 4) == 0;
		uint64_t seed = next(&r) >> 2;
		struct talk *t = dial(&r, second);
		if (t)
			run(t, !second, seed);
	}
	job.threads--;
	return NULL;
}

static void *brief(void *arg)
{
	struct random r = { mix(all.seed) + mix((uintptr_t)arg) };
	while (job.left-- > 0) {
		struct talk *t = dial(&r, false);
		if (t)
			run(t, true, next(&r) >> 2 | BRIEF);
	}
	job.threads--;
	return NULL;
}

static void crowd(void *(*f)(void *), int threads)
{
	job.threads = threads;
	for (uintptr_t i = 0; i < (uintptr_t)threads; i++)
		thread(f, (void *)(i + 1));
	for (struct pollfd in = { 0, POLLIN, 0 }; job.threads;) {
		if (job.over)
			usleep(10000);
		else
			job.over = poll(&in, 1, 10) > 0;
	}
}

static void keep(int count, int turns)
{
	struct random r = { mix(all.seed) };
	struct talk **talks = calloc(count, sizeof(*talks));
	for (int i = 0; i < count; i++)
		if ((talks[i] = dial(&r, false)))
			run(talks[i], true, (next(&r) >> 2 & ~0xffffull) | HOLD | turns);
	puts("held");
	for (char byte; read(0, &byte, 1) > 0;)
		for (int i = 0; i < count; i++)
			if (talks[i]) {
				equip(talks[i]);
				hold(talks[i]);
			}
}

/* watch prints the progress, and detects hung conversations. */
static void *watch(void *arg)
{
	for (;; usleep(500000)) {
		uint64_t time = now();
		for (int i = 0; i < LIVE; i++) {
			struct talk *t = all.talking[i];
			if (t && t->doing && t->moved + all.limit < time)
				leave(3,
				      "hang for %lu ms: seed %#lx, %s, %s, %lu bytes sent, %lu "
				      "received\n",
				      (time - t->moved) / 1000000, t->seed,
				      t->client ? "client" : "server", t->doing, t->at[OUT],
				      t->at[IN]);
		}
		printf("at %lu %lu\n", all.talks, all.bytes);
	}
	return arg;
}

static void on_alarm(int signal)
{
	(void)signal;
}

/* disturb interrupts system calls, as a program's timers and children do. */
static void disturb(void)
{
	if (!all.blocks)
		return;
	struct sigaction act = { .sa_handler = on_alarm }; /* no SA_RESTART */
	struct itimerval every = { { 0, 7000 }, { 0, 7000 } };
	sigaction(SIGALRM, &act, NULL);
	setitimer(ITIMER_REAL, &every, NULL);
}

static void address(const char *text, int port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_V4MAPPED,
				  .ai_family = AF_INET6,
				  .ai_socktype = SOCK_STREAM },
			*found;
	if (all.count == 8 || getaddrinfo(text, NULL, &hints, &found))
		leave(2, "wrong address %s\n", text);
	memcpy(&all.to[all.count], found->ai_addr, sizeof(all.to[0]));
	all.to[all.count++].sin6_port = htons(port);
	freeaddrinfo(found);
}

static enum fault fault_named(const char *name)
{
	for (size_t i = 0; i < sizeof(fault_names) / sizeof(*fault_names); i++)
		if (!strcmp(name, fault_names[i]))
			return i;
	leave(2, "wrong fault %s\n", name);
}

static void options(int argc, char **argv)
{
	all.limit = 20;
	for (int o; (o = getopt(argc, argv, "+s:t:cbf:")) != -1;) {
		if (o == 's')
			all.seed = strtoull(optarg, NULL, 0);
		else if (o == 't')
			all.limit = atoi(optarg);
		else if (o == 'c')
			all.cuts = true;
		else if (o == 'b')
			all.blocks = true;
		else if (o == 'f')
			all.fault = fault_named(optarg);
		else
			leave(2, "wrong option\n");
	}
	all.limit *= 1000000000ull;
}

int main(int argc, char **argv)
{
	struct rlimit files = { 65536, 65536 };
	setrlimit(RLIMIT_NOFILE, &files);
	setvbuf(stdout, NULL, _IOLBF, 0);
	options(argc, argv);
	argv += optind;
	argc -= optind;
	/* arguments after the port */
	int fixed = argc && (!strcmp(argv[0], "brief") || !strcmp(argv[0], "hold"));
	if (argc < 2 || (argc > 2 && argc < 4 + fixed))
		leave(2, "wrong arguments\n");
	all.server = !strcmp(argv[0], "serve");
	for (int i = 2; i < argc - 1 - fixed; i++)
		address(argv[i], atoi(argv[argc - 1 - fixed]));
	signal(SIGPIPE, SIG_IGN);
	disturb();
	thread(watch, NULL);
	job.left = fixed ? atoi(argv[argc - 1]) : 0;
	if (all.server)
		serve(atoi(argv[1]));
	else if (!strcmp(argv[0], "talk"))
		crowd(talk, atoi(argv[1]));
	else if (!strcmp(argv[0], "brief"))
		crowd(brief, atoi(argv[1]));
	else
		keep(job.left, atoi(argv[1]));
	while (all.server && all.live)
		usleep(1000);
	leave(0, "done %lu conversations, %lu cut, %lu bytes, %lu EAGAIN\n", all.talks, all.cut,
	      all.bytes, all.again);
}
