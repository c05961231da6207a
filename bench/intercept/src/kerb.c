// SPDX-License-Identifier: Apache-2.0
/* The receiver with Kerb's library, for the intercept module, or for the kernel module, whose open
 * class is descriptor 3. */
#define _GNU_SOURCE
#include <kerb_intercept.h>

#include "meter.h"

enum { CLASS_FD = 3, MAX_PACKETS = 64, PATIENCE_NS = 1000000 };

static struct kerb_intercept *open_class(char **argv)
{
	bool fifo = !strcmp(argv[2], "fifo"), idle_poll = !strcmp(argv[2], "ready");
	const char *where = argv[4];
	struct kerb_intercept_options options = {
		.wait = !strcmp(argv[1], "spin")    ? KERB_WAIT_SPIN
			: !strcmp(argv[1], "sleep") ? KERB_WAIT_SLEEP
						    : KERB_WAIT_ADAPTIVE,
		.fifo = fifo ? FIFO_PRIORITY : 0,
		.keep = !strcmp(argv[2], "other"),
		.idle_poll = idle_poll,
		.patience = strcmp(argv[1], "patient") ? 0 : PATIENCE_NS,
		.device = argv[5],
		/* the agent may learn a moment late that the previous receiver has exited */
		.takeover = true,
	};
	struct kerb_intercept *k;
	int err;

	if (where[0] == '/')
		err = kerb_intercept_open(&k, where, "data", &options);
	else
		err = kerb_intercept_open_device(&k, CLASS_FD, atoi(where), &options);
	if (err) {
		fprintf(stderr, "%s\n", kerb_intercept_error());
		exit(1);
	}
	return k;
}

/* kerb sleep|spin|adaptive|patient other|eager|ready|fifo CPU SOCKET|BYTES-OF-THE-RING [DEVICE, for
 * AF_XDP] */
int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6)
		return 2;
	setup_receiver("other", argv[3]); /* the library sets class and priority */

	struct kerb_intercept *k = open_class(argv);
	struct kerb_packet packets[MAX_PACKETS];

	print_ready();
	for (;;) {
		int n = kerb_intercept_receive(k, packets, MAX_PACKETS, -1);

		for (int i = 0; i < n; i++) {
			const struct kerb_packet *p = &packets[i];

			meter.reported += p->lost;
			if (p->caplen >= p->payload + sizeof(struct message))
				record_message_from((const void *)(p->frame + p->payload),
						    (int64_t)p->sent, now_ns());
		}
	}
}
