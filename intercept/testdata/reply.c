// SPDX-License-Identifier: Apache-2.0
//go:build ignore
/* reply SOCKET CLASS [PORT]: answers packets, each a line of input: L3 L4 FLAGS AT FRAME, the frame
 * in hexadecimal, AT the launch time or 0. With PORT, by a socket of its own. Writes a line for each:
 * 0, or the error; then, for those with a launch time, the numbers of such answers. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "kerb_intercept.h"

static int own_socket(int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	return bind(fd, (void *)&at, sizeof(at)) ? -1 : fd;
}

static int reply_at(struct kerb_intercept *k, const struct kerb_packet *p, uint64_t at)
{
	struct kerb_peer peer;
	int code = kerb_intercept_peer(p, &peer);

	return code ? code : kerb_intercept_send_at(k, &peer, "answer", 6, at);
}

static void write_launches(struct kerb_intercept *k)
{
	struct kerb_intercept_launches l;

	kerb_intercept_launches(k, &l);
	printf(" %llu %llu %llu", (unsigned long long)l.timed, (unsigned long long)l.late,
	       (unsigned long long)l.dropped);
}

int main(int argc, char **argv)
{
	struct kerb_intercept_options options = { .keep = true };
	struct kerb_intercept *k;
	char hex[4096];
	unsigned l3, l4, flags;
	unsigned long long at;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (kerb_intercept_open(&k, argv[1], argv[2], &options) ||
	    (argc > 3 && kerb_intercept_socket(k, own_socket(atoi(argv[3]))))) {
		printf("error %s\n", kerb_intercept_error());
		return 1;
	}
	while (scanf("%u %u %u %llu %4095s", &l3, &l4, &flags, &at, hex) == 5) {
		static uint8_t frame[2048];
		struct kerb_packet p = {
			.frame = frame, .l3 = (uint16_t)l3, .l4 = (uint16_t)l4, .flags = flags
		};
		int code;

		for (; sscanf(hex + 2 * p.caplen, "%2hhx", &frame[p.caplen]) == 1; p.caplen++)
			;
		code = at ? reply_at(k, &p, at) : kerb_intercept_reply(k, &p, "answer", 6);
		printf("%s", code ? kerb_intercept_error() : "0");
		if (at)
			write_launches(k);
		printf("\n");
	}
	kerb_intercept_close(k);
	return 0;
}
