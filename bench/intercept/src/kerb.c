// SPDX-License-Identifier: Apache-2.0
/* The receiver with Kerb's library: of the intercept module, or of the kernel module, whose open
 * class is descriptor 3. */
#define _GNU_SOURCE
#include <kerb_intercept.h>

#include "meter.h"

enum { CLASS_FD = 3, MOST = 64, PATIENCE_NS = 1000000 };

static struct kerb_intercept *open_class(char **argv)
{
	bool fifo = !strcmp(argv[2], "fifo"), ready = !strcmp(argv[2], "ready");
	const char *where = argv[4];
	struct kerb_intercept_options options = {
		.wait = !strcmp(argv[1], "spin")    ? KERB_WAIT_SPIN
			: !strcmp(argv[1], "sleep") ? KERB_WAIT_SLEEP
						    : KERB_WAIT_ADAPTIVE,
		.fifo = fifo ? FIFO_PRIORITY : 0,
		.keep = !strcmp(argv[2], "other"),
		.idle_poll = ready,
		.patience = strcmp(argv[1], "patient") ? 0 : PATIENCE_NS,
		.device = argv[5],
		/* that a receiver has gone is known a moment later where others have the CPU */
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
	settle("other", argv[3]); /* the rest is the library's to do */

	struct kerb_intercept *k = open_class(argv);
	struct kerb_packet packets[MOST];

	ready();
	for (;;) {
		int n = kerb_intercept_receive(k, packets, MOST, -1);

		for (int i = 0; i < n; i++) {
			const struct kerb_packet *p = &packets[i];

			meter.told += p->lost;
			if (p->caplen >= p->payload + sizeof(struct message))
				account_from((const void *)(p->frame + p->payload),
					     (int64_t)p->sent, now());
		}
	}
}
