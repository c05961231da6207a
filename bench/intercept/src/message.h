// SPDX-License-Identifier: Apache-2.0
/* The fields of the published packet in 32 bytes instead of 64, in host byte order, followed by
 * padding. Shared with stamp.bpf.c. */
#pragma once

#include <linux/types.h>

/* for BPF programs that are not configured; the same as in contender.go */
enum { SERVER_PORT = 8080 };

enum message_type { MESSAGE_BEGIN = 1, MESSAGE_DATA = 2, MESSAGE_END = 3 };

struct message {
	__u32 client, type;
	__u64 number;  /* from 0 on, of each type */
	__u64 created; /* T0: in the sender; ns of CLOCK_MONOTONIC, as all times */
	__u64 arrived; /* T1: written by the first program at the hook; 0 until then */
};

/* A slot of the array that the published receiver polls. The XDP program writes number last. */
enum { ARRAY_SLOTS = 8192, ARRAY_DATA = 2048 };
struct array_slot {
	__u64 number; /* from 1 on */
	__u32 len;
	__u8 data[ARRAY_DATA]; /* from the Ethernet header on */
};
