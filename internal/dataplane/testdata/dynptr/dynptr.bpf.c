// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Has a global function write to the packet through a dynptr (Linux 6.4), which on TC may move it.
 * Ingress reads the packet again behind that; egress reads through its old pointer, which the
 * verifier must refuse. */
#include <kerb/module.h>

#ifdef KERB_HOOK_XDP
#define DYNPTR_FROM bpf_dynptr_from_xdp
#else
#define DYNPTR_FROM bpf_dynptr_from_skb
#endif
extern int DYNPTR_FROM(kerb_ctx *ctx, __u64 flags, struct bpf_dynptr *ptr) __ksym;

__noinline int write_first(kerb_ctx *ctx, __u32 value)
{
	struct bpf_dynptr frame;
	__u8 byte = value;

	if (DYNPTR_FROM(ctx, 0, &frame))
		return -EINVAL;
	return bpf_dynptr_write(&frame, 0, &byte, sizeof(byte), 0);
}

KERB_EGRESS(pkt)
{
	__u8 *byte = kerb_at(pkt, 0, 1);

	if (!byte)
		return KERB_NEXT;
	write_first(pkt->ctx, 7);
	return *byte == 7 ? KERB_DROP : KERB_NEXT;
}

KERB_INGRESS(pkt)
{
	__u8 *byte;

	if (write_first(pkt->ctx, 7))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	kerb_reload(pkt);
	byte = kerb_at(pkt, 0, 1);
	return byte && *byte == 7 ? KERB_NEXT : KERB_DROP;
}

KERB_LICENSE("Dual BSD/GPL");
