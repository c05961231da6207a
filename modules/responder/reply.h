/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Turns the packet of a request into that of the reply. */
#ifndef RSP_REPLY_H
#define RSP_REPLY_H

#include "check.h"

/* Returns whether a reply is within max_reply and the MTU. */
static __always_inline int rsp_reply_fits(const struct rsp_request *r)
{
	return r->req.reply_len <= r->listener->max_reply &&
	       kerb_reply_fits(&r->req, r->req.reply_len);
}

/* Units of copying. */
struct rsp_block {
	__u32 w[8];
};

struct rsp_half_block {
	__u32 w[4];
};

#ifdef KERB_HOOK_XDP

/* Copies an object from the scratch buffer into the packet. By assignment, as memcpy() would copy
 * single bytes where the alignment is unknown. */
#define RSP_COPY(at, from, type)                                  \
	do {                                                      \
		type *_to = kerb_frame_at(ctx, at, sizeof(type)); \
		if (!_to)                                         \
			return -1;                                \
		*_to = *(type *)(from);                           \
	} while (0)

#else
#define RSP_COPY(at, from, size)
#endif

/* Copies a reply of len bytes from the scratch buffer to the frame at an offset. Returns its
 * checksum like kerb_sum_frame(), or -1. */
KERB_GLOBAL int rsp_frame_copy(kerb_ctx *ctx, __u32 at, __u32 len)
{
	struct rsp_scratch *from = rsp_scratch();
	__u64 sum = 0, tail = kerb_frame_offset(len & ~31), end = tail;

	if (!from)
		return -1;
	kerb_detach(end);
	for (__u64 off = 0; off < KERB_REPLY_MAX; off += 32) {
		struct rsp_block *b = (void *)(from->data + off);

		if (off >= end)
			break;
		sum += (__u64)b->w[0] + b->w[1] + b->w[2] + b->w[3] + b->w[4] + b->w[5] + b->w[6] +
		       b->w[7];
		RSP_COPY(at + off, b, struct rsp_block);
	}
#define RSP_COPY_REST(type, size, add)                   \
	if (len & size) {                                \
		__u32 *w = (__u32 *)(from->data + tail); \
		sum += add;                              \
		RSP_COPY(at + tail, w, type);            \
		tail = kerb_frame_offset(tail + size);   \
	}
	RSP_COPY_REST(struct rsp_half_block, 16, (__u64)w[0] + w[1] + w[2] + w[3])
	RSP_COPY_REST(__u64, 8, (__u64)w[0] + w[1])
	RSP_COPY_REST(__u32, 4, *w)
	RSP_COPY_REST(__u16, 2, *(__u16 *)w)
	RSP_COPY_REST(__u8, 1, bpf_htons(*(__u8 *)w << 8))
#undef RSP_COPY_REST
#ifdef KERB_HOOK_TC
	if (len && bpf_skb_store_bytes(ctx, at, from->data, kerb_frame_offset(len - 1) + 1,
				       BPF_F_RECOMPUTE_CSUM))
		return -1;
#endif
	return kerb_fold(sum);
}

/* Copies the reply from the scratch buffer into the packet, and sets its checksum. */
static __always_inline int rsp_reply_copy(struct kerb_request *r)
{
	int sum = rsp_frame_copy(r->pkt->ctx, r->payload, r->reply_len);

	kerb_reload(r->pkt);
	r->reply_sum = (__u32)sum;
	return sum < 0 ? -1 : 0;
}

/* Completes the reply: payload, then swapped addresses and ports. */
static __always_inline int rsp_reply_finish(struct rsp_request *r)
{
	if (r->scratch) {
		if (rsp_reply_copy(&r->req))
			return -1;
	} else if (!r->same && kerb_reply_sum(&r->req)) {
		return -1;
	}
	return kerb_reply_turn(&r->req);
}

#endif
