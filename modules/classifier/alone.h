/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The engine with nothing around it, for programs that test and measure it: model/testdata,
 * inference. */
#ifndef CLS_ALONE_H
#define CLS_ALONE_H

#include <kerb/infer.h>

/* A frame is features, which the decision takes the place of. The action is kerb_infer's result
 * plus 2. */
struct frame {
	__s64 features[KERB_FEATURES_MAX];
};

SEC("xdp")
int decide(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	struct kerb_inference *s = kerb_inference();
	int err;

	if (!s || (void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(&s->features, f->features, sizeof(s->features));
	err = kerb_infer(KERB_MODEL_LIVE);
	__builtin_memcpy(f->features, &s->decision[KERB_MODEL_LIVE], sizeof(struct kerb_decision));
	return 2 + err;
}

char _license[] SEC("license") = "Dual BSD/GPL";

#endif
