// SPDX-License-Identifier: Apache-2.0
/* The other sensors of the device: they send LOG messages to the controller's port until stopped.
 *
 *	sensors [-r MESSAGES-PER-SECOND] [CONTROLLER] */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pendulum.h"

#define STEP 1000000 /* ns between batches */

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(PORT),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct log_message message = { .kind = { 'L', 'O', 'G', ' ' },
				       .text = "23.5 C, 40% humidity" };
	int option, rate = 50000, fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct timespec t;

	while ((option = getopt(argc, argv, "r:")) != -1) {
		switch (option) {
		case 'r': rate = atoi(optarg); break;
		default: return 2;
		}
	}
	if (argv[optind] && inet_pton(AF_INET, argv[optind], &to.sin_addr) != 1) {
		fprintf(stderr, "sensors: %s is no IPv4 address\n", argv[optind]);
		return 2;
	}
	if (connect(fd, (void *)&to, sizeof(to))) {
		perror("sensors");
		return 2;
	}
	clock_gettime(CLOCK_MONOTONIC, &t);
	for (uint32_t number = 0;; next_step(&t, STEP)) {
		for (int i = 0; i < rate / 1000; i++) {
			message.number = htonl(number++);
			send(fd, &message, sizeof(message),
			     0); /* errors are ignored: no retransmission */
		}
	}
}
