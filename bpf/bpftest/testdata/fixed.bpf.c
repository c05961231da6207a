// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Functions of <kerb/fixed.h> on the numbers of a packet: `count` numbers a, which the results
 * replace, and behind them as many b. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include <kerb/fixed.h>

#define COUNT 64

struct numbers {
	kerb_fixed a[COUNT], b[COUNT];
};

#define PROGRAM(name, result)                                                 \
	SEC("xdp") int fixed_##name(struct xdp_md *ctx)                       \
	{                                                                     \
		struct numbers *n = (void *)(long)ctx->data;                  \
                                                                              \
		if ((void *)(n + 1) > (void *)(long)ctx->data_end)            \
			return XDP_DROP;                                      \
		for (int i = 0; i < COUNT; i++) {                             \
			kerb_fixed a = n->a[i], b = n->b[i];                  \
                                                                              \
			(void)b;                                              \
			n->a[i] = result;                                     \
		}                                                             \
		return XDP_PASS;                                              \
	}

PROGRAM(from, kerb_fixed_from(a))
PROGRAM(round, kerb_fixed_round(a))
PROGRAM(add, kerb_fixed_add(a, b))
PROGRAM(sub, kerb_fixed_sub(a, b))
PROGRAM(mul, kerb_fixed_mul(a, b))
PROGRAM(div, kerb_fixed_div(a, b))
PROGRAM(sqrt, kerb_fixed_sqrt(a))
PROGRAM(sin, kerb_fixed_sin(a))
PROGRAM(cos, kerb_fixed_cos(a))
PROGRAM(exp, kerb_fixed_exp(a))
PROGRAM(log, kerb_fixed_log(a))
PROGRAM(constant, KERB_FIXED(-0.5) * (a == KERB_FIXED(1.25)))

char _license[] SEC("license") = "Dual BSD/GPL";
