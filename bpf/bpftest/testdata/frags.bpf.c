// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The chain head for XDP frames in several buffers. */
#define KERB_XDP_FRAGS
#include "parse.bpf.c"
