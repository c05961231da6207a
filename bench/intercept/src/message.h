// SPDX-License-Identifier: Apache-2.0
/* What the published packet has, in 32 bytes in place of 64, in the byte order of the machine:
 * data follow up to its size. Shared with stamp.bpf.c. */
#pragma once

#include <linux/types.h>

/* where a program of the kernel that nothing configures finds messages; contender.go has it, too */
enum { SERVER_PORT = 8080 };

enum message_type { MESSAGE_BEGIN = 1, MESSAGE_DATA = 2, MESSAGE_END = 3 };

struct message {
	__u32 client, type;
	__u64 number;  /* from 0 on, of each type */
	__u64 created; /* T0: the sender has made it; ns of CLOCK_MONOTONIC, as all times */
	__u64 arrived; /* T1: written into the packet at the hook, before all else; 0 until then */
};

/* What a program of the kernel leaves for one that polls an array: the original's way. number is
 * written last. */
enum { ARRAY_SLOTS = 8192, ARRAY_DATA = 2048 };
struct array_slot {
	__u64 number; /* from 1 on */
	__u32 len;
	__u8 data[ARRAY_DATA]; /* from the Ethernet header on */
};
