/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What programs see of the kernel module: an open /dev/kerb-intercept is one class, made by
 * ICPT_ATTACH. Its ring is mapped like that of a BPF ring buffer map: at offset 0 the consumer's
 * page, writable; behind it, read only, the producer's page and the data twice in a row. Behind all
 * that is the page of its struct icpt_state, writable. What is in the ring and in the page, and how
 * one waits, is documented in modules/intercept/record.h; but behind a record's header there are
 * caplen bytes and no step. */
#pragma once

#include <linux/ioctl.h>
#include <linux/types.h>

#define ICPT_DEVICE "/dev/kerb-intercept"
#define ICPT_PATTERN 16 /* bytes */

/* Host byte order. From family on, zero matches anything. */
struct icpt_rule {
	__u64 watchdog; /* ns that records may wait before what is to be stolen passes */
	__u32 ifindex;
	__u32 ring;   /* bytes, a power of two and whole pages */
	__u32 action; /* ICPT_COPY or ICPT_STEAL */
	__u32 caplen; /* bytes of a frame that are delivered; 0: all */
	__u16 slot;   /* goes into the records */
	__u8 family;  /* 4 or 6 */
	__u8 protocol;
	__u16 first_port, last_port; /* destination */
	__u16 pattern_at, pattern_len; /* in the payload */
	__u8 pattern[ICPT_PATTERN], mask[ICPT_PATTERN];
};

struct icpt_stats {
	__u64 packets, bytes; /* that matched */
	__u64 delivered, lost, passed; /* passed: by the watchdog */
};

#define ICPT_ATTACH _IOW('K', 0x60, struct icpt_rule)
#define ICPT_STATS _IOR('K', 0x61, struct icpt_stats)
