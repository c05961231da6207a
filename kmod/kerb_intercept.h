/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The interface of the kernel module. An open /dev/kerb-intercept is a class, which ICPT_ATTACH
 * creates (it needs CAP_NET_ADMIN in the user namespace of the network namespace). Its ring is
 * mapped like that of a BPF ring buffer map: at offset 0 the page of the consumer position,
 * writable; then, read-only, the page of the producer position and the data pages twice; then the
 * page of struct icpt_state, writable. The contents of ring and page, and waiting, are documented
 * in modules/intercept/record.h, except that caplen bytes follow the header of a record, without
 * padding to a step. lib/intercept reads it with kerb_intercept_open_device. */
#pragma once

#include <linux/ioctl.h>
#include <linux/types.h>

#define ICPT_DEVICE "/dev/kerb-intercept"
#define ICPT_PATTERN 16 /* bytes */

/* The rule of a class. Host byte order. From family on, 0 matches anything. */
struct icpt_rule {
	__u64 watchdog; /* ns for which records may stay unread before packets pass */
	__u32 ifindex;
	__u32 ring;   /* size in bytes, a power of two, at least a page, at most 64 MiB */
	__u32 action; /* ICPT_COPY or ICPT_STEAL */
	__u32 caplen; /* the most bytes of a frame that are delivered; 0: all */
	__u16 slot;   /* copied to icpt_record.slot */
	__u8 family;  /* 4 or 6 */
	__u8 protocol;
	__u16 first_port, last_port;   /* range of destination ports */
	__u16 pattern_at, pattern_len; /* offset in the payload, length */
	__u8 pattern[ICPT_PATTERN], mask[ICPT_PATTERN];
};

struct icpt_stats {
	__u64 packets, bytes;	       /* that match */
	__u64 delivered, lost, passed; /* lost: the ring was full; passed: by the watchdog */
};

/* Creates the class. -EBUSY: it is attached already; -ENODEV, -EOPNOTSUPP: no such device, or not
 * Ethernet. */
#define ICPT_ATTACH _IOW('K', 0x60, struct icpt_rule)
/* Reads statistics. -ENXIO: not attached. */
#define ICPT_STATS _IOR('K', 0x61, struct icpt_stats)
