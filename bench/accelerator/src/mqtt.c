// SPDX-License-Identifier: Apache-2.0
/* A publisher and a subscriber of MQTT 3.1.1, each on a connection of its own: 24 bytes are
 * published, and the next ones when these have come, with QoS 1 acknowledged on both
 * connections. */
#define _GNU_SOURCE
#include "histogram.h"
#include "wire.h"

enum { CONNECT = 0x10, PUBLISH = 0x30, PUBACK = 0x40, SUBSCRIBE = 0x82, SIZE = 24, TOPIC = 5 };

static struct address broker;

struct packet {
	uint8_t type, size, body[126]; /* sizes below 128 take one byte */
};

static void send_packet(int fd, uint8_t type, const void *body, uint8_t size)
{
	struct packet p = { type, size, { 0 } };

	memcpy(p.body, body, size);
	if (write_all(fd, &p, 2 + size) != (size_t)(2 + size))
		die("send");
}

/* expect receives a packet of a type; flags are ignored. */
static struct packet expect(int fd, uint8_t type)
{
	struct packet p;

	if (read_all(fd, &p, 2) != 2 || p.size > sizeof(p.body) ||
	    read_all(fd, p.body, p.size) != p.size)
		die("receive");
	if ((p.type & 0xf0) != (type & 0xf0)) {
		fprintf(stderr, "the broker sent a packet of type %#x instead of %#x\n", p.type,
			type);
		exit(1);
	}
	return p;
}

static int join(char name)
{
	/* protocol, level 4, clean session, no keep-alive, a name of two bytes */
	char body[] = { 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, 2, 'k', name };
	int fd = socket(broker.any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &broker.any, broker.size))
		die("connect");
	no_delay(fd);
	send_packet(fd, CONNECT, body, sizeof(body));
	if (expect(fd, 0x20).body[1]) {
		fprintf(stderr, "the broker refuses the connection\n");
		exit(1);
	}
	return fd;
}

/* publish writes a message with topic, identifier if there is an acknowledgement, and a number. */
static void publish(int fd, int qos, uint16_t id, uint64_t number)
{
	char body[64] = { 0, TOPIC, 'b', 'e', 'n', 'c', 'h', id >> 8, id };
	int at = 2 + TOPIC + 2 * qos;

	memset(body + at, 0, SIZE);
	memcpy(body + at, &number, sizeof(number));
	send_packet(fd, PUBLISH | qos << 1, body, at + SIZE);
}

static void receive(int fd, int qos, uint64_t number)
{
	struct packet p = expect(fd, PUBLISH);

	if (p.size != 2 + TOPIC + 2 * qos + SIZE ||
	    memcmp(p.body + 2 + TOPIC + 2 * qos, &number, sizeof(number))) {
		fprintf(stderr, "message %lu came wrong\n", number);
		exit(1);
	}
	if (qos)
		send_packet(fd, PUBACK, p.body + 2 + TOPIC, 2);
}

/* mqtt QOS MESSAGES HOST PORT */
int main(int argc, char **argv)
{
	static struct histogram h;
	char topic[] = { 0, 1, 0, TOPIC, 'b', 'e', 'n', 'c', 'h', 0 };

	if (argc != 5)
		return 2;
	int qos = atoi(argv[1]);
	uint64_t messages = strtoull(argv[2], NULL, 10);

	broker = parse_address(argv[3], argv[4]);
	int sub = join('s'), pub = join('p');

	topic[sizeof(topic) - 1] = qos;
	send_packet(sub, SUBSCRIBE, topic, sizeof(topic));
	expect(sub, 0x90);
	int64_t start = now(), sent;

	for (uint64_t i = 0; i < messages; i++) {
		sent = now();
		publish(pub, qos, i % 65535 + 1, i);
		receive(sub, qos, i);
		record(&h, now() - sent);
		if (qos)
			expect(pub, PUBACK);
	}
	printf("{");
	print_times(&h);
	printf("\"n\":%lu,\"seconds\":%.9f}\n", h.n, (now() - start) / 1e9);
}
