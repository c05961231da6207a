/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The bytes of a packet that a program can read directly. */
#ifndef KERB_BOUNDS_H
#define KERB_BOUNDS_H

#include <kerb/types.h>
#include <kerb/verifier.h>

/* Reads the packet's bounds. Call it first, and after any helper that may have moved the packet,
 * which invalidates pointers into it. */
static __always_inline void kerb_reload(struct kerb_pkt *pkt)
{
	void *ctx = pkt->ctx;

	pkt->data = (void *)kerb_ctx_field(ctx, data);
	pkt->data_end = (void *)kerb_ctx_field(ctx, data_end);
}

/* Returns a pointer to len bytes at offset off of the frame, or NULL if the linear part ends before
 * them or off is beyond KERB_MAX_OFFSET. kerb_detach makes off an independent scalar for the
 * verifier: otherwise the comparison would also bound what off was computed from, and prevent
 * pruning of states of the caller. The mask repeats the comparison for verifiers that lose the
 * bound when the value is spilled; the barrier keeps the compiler from removing it. */
static __always_inline void *kerb_at(const struct kerb_pkt *pkt, __u64 off, __u64 len)
{
	void *p;

	if (!__builtin_constant_p(off))
		kerb_detach(off);
	if (off > KERB_MAX_OFFSET)
		return 0;
	if (!__builtin_constant_p(off))
		kerb_opaque(off);
	p = pkt->data + (off & KERB_MAX_OFFSET);

	return p + len > pkt->data_end ? 0 : p;
}

#endif
