// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The module that the data plane's tests swap. Payload, little endian: u64 sequence, u32 stamps,
 * u32 generation. The swap benchmark counts with it how many map sets processed a packet. */
#include "../../../internal/dataplane/testdata/stamp/stamp.bpf.c"
