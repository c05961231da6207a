/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The engine with nothing around it, for programs that test and measure it: model/testdata,
 * inference. */
#ifndef CLS_ALONE_H
#define CLS_ALONE_H

#include "engine.h"

/* A frame is features, which the decision takes the place of. The action is cls_infer's result plus
 * 2. */
struct frame {
	__s64 features[CLS_FEATURES_MAX];
};

SEC("xdp")
int decide(struct xdp_md *ctx)
{
	struct frame *f = (void *)(long)ctx->data;
	struct cls_scratch *s = cls_scratch();
	int err;

	if (!s || (void *)(f + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(&s->features, f->features, sizeof(s->features));
	err = cls_infer(CLS_LIVE);
	__builtin_memcpy(f->features, &s->decision[CLS_LIVE], sizeof(struct cls_decision));
	return 2 + err;
}

char _license[] SEC("license") = "Dual BSD/GPL";

#endif
