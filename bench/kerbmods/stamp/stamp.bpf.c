// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The one that the data plane's own tests swap. Payload, little endian: u64 sequence, u32 stamps,
 * u32 generation: the swap benchmark sees by it how many map sets met a packet. */
#include "../../../internal/dataplane/testdata/stamp/stamp.bpf.c"
