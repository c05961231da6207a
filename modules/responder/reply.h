/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Makes the request's packet the reply's. */
#ifndef RSP_REPLY_H
#define RSP_REPLY_H

#include "check.h"

/* Whether a reply fits what leaves here. */
static __always_inline int rsp_fits(const struct rsp_request *r)
{
	return r->req.reply_len <= r->listener->max_reply &&
	       kerb_reply_fits(&r->req, r->req.reply_len);
}

#ifdef KERB_HOOK_XDP

/* Copies size bytes (a constant) from the scratch buffer into the packet. */
#define RSP_COPY(at, from, size)                          \
	do {                                              \
		void *_to = kerb_frame_at(ctx, at, size); \
		if (!_to)                                 \
			return -1;                        \
		__builtin_memcpy(_to, from, size);        \
	} while (0)

#else
#define RSP_COPY(at, from, size)
#endif

/* Copies a reply of len bytes from the scratch buffer to an offset of the frame, and sums it: as
 * kerb_sum_frame() does. */
KERB_GLOBAL int rsp_copy_frame(kerb_ctx *ctx, __u32 at, __u32 len)
{
	struct rsp_scratch *from = rsp_scratch();
	__u64 sum = 0, tail = kerb_frame_offset(len & ~31);

	if (!from)
		return -1;
	for (__u64 off = 0; off < KERB_REPLY_MAX; off += 32) {
		__u32 *w = (__u32 *)(from->data + off);

		if (off >= tail)
			break;
		sum += (__u64)w[0] + w[1] + w[2] + w[3] + w[4] + w[5] + w[6] + w[7];
		RSP_COPY(at + off, w, 32);
	}
#define RSP_COPY_REST(size, add)                         \
	if (len & size) {                                \
		__u32 *w = (__u32 *)(from->data + tail); \
		sum += add;                              \
		RSP_COPY(at + tail, w, size);            \
		tail = kerb_frame_offset(tail + size);   \
	}
	RSP_COPY_REST(16, (__u64)w[0] + w[1] + w[2] + w[3])
	RSP_COPY_REST(8, (__u64)w[0] + w[1])
	RSP_COPY_REST(4, *w)
	RSP_COPY_REST(2, *(__u16 *)w)
	RSP_COPY_REST(1, bpf_htons(*(__u8 *)w << 8))
#undef RSP_COPY_REST
#ifdef KERB_HOOK_TC
	if (len && bpf_skb_store_bytes(ctx, at, from->data, kerb_frame_offset(len - 1) + 1,
				       BPF_F_RECOMPUTE_CSUM))
		return -1;
#endif
	return kerb_fold(sum);
}

/* Copies the reply from the scratch buffer into the packet, and sums it up. */
static __always_inline int rsp_copy(struct kerb_request *r)
{
	int sum = rsp_copy_frame(r->pkt->ctx, r->payload, r->reply_len);

	kerb_reload(r->pkt);
	r->reply_sum = (__u32)sum;
	return sum < 0 ? -1 : 0;
}

/* Turns the packet round. */
static __always_inline int rsp_reply_finish(struct rsp_request *r)
{
	if (r->scratch) {
		if (rsp_copy(&r->req))
			return -1;
	} else if (!r->same && kerb_reply_sum(&r->req)) {
		return -1;
	}
	return kerb_reply_turn(&r->req);
}

#endif
