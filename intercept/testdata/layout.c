// SPDX-License-Identifier: Apache-2.0
//go:build ignore
/* Where things are, for Go to compare. */
#include <stddef.h>
#include <stdio.h>

#include "record.h"

int main(void)
{
	printf("record %zu %zu %zu %zu\n", sizeof(struct icpt_record),
	       offsetof(struct icpt_record, l3), offsetof(struct icpt_record, ifindex),
	       offsetof(struct icpt_record, pid));
	printf("late %zu %zu %zu\n", sizeof(struct icpt_late), offsetof(struct icpt_late, queued),
	       offsetof(struct icpt_late, comm1));
	printf("state %zu %zu %zu %zu %zu %zu %zu\n", sizeof(struct icpt_state),
	       offsetof(struct icpt_state, waiting), offsetof(struct icpt_state, heartbeat),
	       offsetof(struct icpt_state, received), offsetof(struct icpt_state, delay),
	       offsetof(struct icpt_state, lates), offsetof(struct icpt_state, last));
	printf("control %zu %zu %zu\n", sizeof(struct icpt_control),
	       offsetof(struct icpt_control, value), offsetof(struct icpt_control, mask));
	printf("numbers %d %d %d %d\n", ICPT_PAGE, ICPT_BUCKETS, ICPT_LATES, ICPT_CONTROLS);
	return 0;
}
