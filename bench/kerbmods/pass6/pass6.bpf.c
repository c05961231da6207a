// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* pass for IPv6. */
#define FAMILY 6
#include "../pass/pass.bpf.c"
