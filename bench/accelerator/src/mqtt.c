// SPDX-License-Identifier: Apache-2.0
/* A publisher and a subscriber of MQTT 3.1.1 on separate connections. A message of 24 bytes is
 * published when the previous one has arrived; with QoS 1, both connections acknowledge it. */
#define _GNU_SOURCE
#include "histogram.h"
#include "wire.h"

enum { CONNECT = 0x10, PUBLISH = 0x30, PUBACK = 0x40, SUBSCRIBE = 0x82, SIZE = 24, TOPIC = 5 };

static struct address broker;

struct packet {
	uint8_t type, size, body[126]; /* remaining length below 128: one byte */
};

static void send_packet(int fd, uint8_t type, const void *body, uint8_t size)
{
	struct packet p = { type, size, { 0 } };

	memcpy(p.body, body, size);
	if (write_all(fd, &p, 2 + size) != (size_t)(2 + size))
		die("send");
}

/* receive_packet exits if the next packet has another type; flags are ignored. */
static struct packet receive_packet(int fd, uint8_t type)
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

static int connect_broker(char name)
{
	/* protocol, level 4, clean session, no keep-alive, client identifier of two bytes */
	char body[] = { 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, 2, 'k', name };
	int fd = socket(broker.any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &broker.any, broker.size))
		die("connect");
	set_nodelay(fd);
	send_packet(fd, CONNECT, body, sizeof(body));
	if (receive_packet(fd, 0x20).body[1]) {
		fprintf(stderr, "the broker refuses the connection\n");
		exit(1);
	}
	return fd;
}

/* send_publish sends a topic, a packet identifier with QoS 1, and a number. */
static void send_publish(int fd, int qos, uint16_t id, uint64_t number)
{
	char body[64] = { 0, TOPIC, 'b', 'e', 'n', 'c', 'h', id >> 8, id };
	int at = 2 + TOPIC + 2 * qos;

	memset(body + at, 0, SIZE);
	memcpy(body + at, &number, sizeof(number));
	send_packet(fd, PUBLISH | qos << 1, body, at + SIZE);
}

static void receive_publish(int fd, int qos, uint64_t number)
{
	struct packet p = receive_packet(fd, PUBLISH);

	if (p.size != 2 + TOPIC + 2 * qos + SIZE ||
	    memcmp(p.body + 2 + TOPIC + 2 * qos, &number, sizeof(number))) {
		fprintf(stderr, "message %lu: wrong content\n", number);
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
	int sub = connect_broker('s'), pub = connect_broker('p');

	topic[sizeof(topic) - 1] = qos;
	send_packet(sub, SUBSCRIBE, topic, sizeof(topic));
	receive_packet(sub, 0x90);
	int64_t start = now_ns(), sent;

	for (uint64_t i = 0; i < messages; i++) {
		sent = now_ns();
		send_publish(pub, qos, i % 65535 + 1, i);
		receive_publish(sub, qos, i);
		histogram_add(&h, now_ns() - sent);
		if (qos)
			receive_packet(pub, PUBACK);
	}
	printf("{");
	print_times(&h);
	printf("\"n\":%lu,\"seconds\":%.9f}\n", h.n, (now_ns() - start) / 1e9);
}
