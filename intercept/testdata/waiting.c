// SPDX-License-Identifier: Apache-2.0
//go:build ignore
/* Steps of the adaptive wait, for events on standard input. */
#include <inttypes.h>
#include <stdio.h>

#include "wait.h"

int main(void)
{
	uint64_t a, b, mode, standing;
	uint32_t awake;
	struct wait w;
	char what;

	while (scanf(" %c %" SCNu64 " %" SCNu64, &what, &a, &b) == 3) {
		struct wait_step s;

		switch (what) {
		case 'i':
			if (scanf("%" SCNu32 " %" SCNu64 " %" SCNu64, &awake, &mode, &standing) !=
			    3)
				return 1;
			wait_init(&w, &(struct wait_goals){ (enum wait_mode)mode, a, b, awake },
				  (enum wait_standing)standing);
			break;
		case 'a':
			wait_arrived(&w, a);
			break;
		case 'w':
			wait_woke(&w, a, b);
			break;
		case 'r':
			wait_rested(&w, a);
			break;
		case 'p':
			wait_preempted(&w, a);
			break;
		case 'n':
			s = wait_next(&w, a);
			printf("%d %" PRIu64 "\n", s.kind, s.until);
			break;
		}
	}
	return 0;
}
