// SPDX-License-Identifier: Apache-2.0
/* The controller with Kerb's library: a class and a thread for each kind of message. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <kerb_intercept.h>

#include "controller.h"

enum { MAX_PACKETS = 64 };

static const char *module, *answer;
static int port, first;

/* send_instruction sends on a socket of the program, or with the library if s is negative. */
static void send_instruction(struct kerb_intercept *k, int s, const struct kerb_packet *p,
			     const struct message *m)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	if (s < 0) {
		kerb_intercept_reply(k, p, m, sizeof(*m)); /* an error is a loss */
		return;
	}
	memcpy(&to.sin_addr, p->frame + p->l3 + 12, 4);
	memcpy(&to.sin_port, p->frame + p->l4, 2);
	sendto(s, m, sizeof(*m), MSG_DONTWAIT, (void *)&to, sizeof(to));
}

/* open_socket opens a socket for sending; those of all classes have the same port. */
static int open_socket(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int s = socket(AF_INET, SOCK_DGRAM, 0), one = 1;

	if (s < 0 || setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) ||
	    bind(s, (void *)&at, sizeof(at)))
		die("bind");
	return s;
}

static void *receive_class(void *arg)
{
	int kind = *(int *)arg + first, s = open_socket();
	struct kerb_intercept_options options = {
		.wait = kind == CTRL ? KERB_WAIT_ADAPTIVE : KERB_WAIT_SLEEP,
		.fifo = LOG_PRIORITY + LOG - kind,
		.takeover = true,
	};
	struct kerb_packet packets[MAX_PACKETS];
	struct kerb_intercept *k;

	if (kerb_intercept_open(&k, module, names[kind], &options) ||
	    (strcmp(answer, "sendto") && kerb_intercept_socket(k, s))) {
		fprintf(stderr, "%s\n", kerb_intercept_error());
		exit(1);
	}
	if (strcmp(answer, "sendto"))
		s = -1;
	print_ready();
	for (;;) {
		int n = kerb_intercept_receive(k, packets, MAX_PACKETS, -1);

		for (int i = 0; i < n; i++) {
			const struct kerb_packet *p = &packets[i];
			const struct message *m = (const void *)(p->frame + p->payload);

			kinds[kind].reported += p->lost;
			if (p->caplen >= p->payload + sizeof(*m) && record_message(m))
				send_instruction(k, s, p, m);
		}
	}
}

/* classes sendto|reply|kernel CPU PORT SOCKET; kernel: CTRL is answered in the kernel. */
int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	answer = strcmp(argv[1], "kernel") ? argv[1] : "sendto";
	first = strcmp(argv[1], "kernel") ? CTRL : DATA;
	port = atoi(argv[3]);
	module = argv[4];
	run_threads(KINDS - first, receive_class, argv[2]);
}
