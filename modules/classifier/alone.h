/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The inference engine as a program of its own, for tests and measurements: model/testdata,
 * inference. */
#ifndef CLS_ALONE_H
#define CLS_ALONE_H

#include <kerb/infer.h>

/* The frame consists of features, and is overwritten by the decision. The XDP action is the result
 * of kerb_infer plus 2. */
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
