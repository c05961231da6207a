// SPDX-License-Identifier: Apache-2.0
//go:build ignore
/* reply SOCKET CLASS [PORT]: answers packets, each a line of input: L3 L4 FLAGS FRAME, the frame in
 * hexadecimal. With PORT, by a socket of its own. Writes a line for each: 0, or the error. */
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

int main(int argc, char **argv)
{
	struct kerb_intercept_options options = { .keep = true };
	struct kerb_intercept *k;
	char hex[4096];
	unsigned l3, l4, flags;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (kerb_intercept_open(&k, argv[1], argv[2], &options) ||
	    (argc > 3 && kerb_intercept_socket(k, own_socket(atoi(argv[3]))))) {
		printf("error %s\n", kerb_intercept_error());
		return 1;
	}
	while (scanf("%u %u %u %4095s", &l3, &l4, &flags, hex) == 4) {
		static uint8_t frame[2048];
		struct kerb_packet p = { .frame = frame,
					 .l3 = (uint16_t)l3,
					 .l4 = (uint16_t)l4,
					 .flags = flags };
		int code;

		for (; sscanf(hex + 2 * p.caplen, "%2hhx", &frame[p.caplen]) == 1; p.caplen++)
			;
		code = kerb_intercept_reply(k, &p, "answer", 6);
		printf("%s\n", code ? kerb_intercept_error() : "0");
	}
	kerb_intercept_close(k);
	return 0;
}
