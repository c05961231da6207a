/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Access to bytes anywhere in a packet, and incremental updates of transport checksums (RFC 1624).
 * Functions return 0 or a negative errno. */
#ifndef KERB_CHECKSUM_H
#define KERB_CHECKSUM_H

#include <linux/errno.h>
#include <bpf/bpf_core_read.h>
#include <kerb/packet.h>

/* Whether the running kernel has a helper; the verifier never sees the other branch. */
#define KERB_HAS(helper) bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_##helper)

#ifdef KERB_HOOK_XDP

/* Copies len bytes (a constant) from offset off of the frame, linear or not. Frames in several
 * buffers need Linux 5.18. */
static __always_inline int kerb_load_bytes(const struct kerb_pkt *pkt, __u32 off, void *to,
					   __u32 len)
{
	void *p = kerb_at(pkt, off, len);

	if (p) {
		__builtin_memcpy(to, p, len);
		return 0;
	}
	return KERB_HAS(xdp_load_bytes) ? bpf_xdp_load_bytes(pkt->ctx, off, to, len) : -EFAULT;
}

/* Overwrites len bytes (a constant) at offset off. The caller updates checksums. */
static __always_inline int kerb_store_bytes(struct kerb_pkt *pkt, __u32 off, const void *from,
					    __u32 len)
{
	void *p = kerb_at(pkt, off, len);

	if (p) {
		__builtin_memcpy(p, from, len);
		return 0;
	}
	return KERB_HAS(xdp_store_bytes) ? bpf_xdp_store_bytes(pkt->ctx, off, (void *)from, len)
					 : -EFAULT;
}

#else

static __always_inline int kerb_load_bytes(const struct kerb_pkt *pkt, __u32 off, void *to,
					   __u32 len)
{
	return bpf_skb_load_bytes(pkt->ctx, off, to, len);
}

/* CHECKSUM_COMPLETE covers everything after the Ethernet header: the sum has to include the
 * bytes. */
static __always_inline int kerb_store_bytes(struct kerb_pkt *pkt, __u32 off, const void *from,
					    __u32 len)
{
	int rc = bpf_skb_store_bytes(pkt->ctx, off, from, len,
				     off < ETH_HLEN ? 0 : BPF_F_RECOMPUTE_CSUM);

	kerb_reload(pkt);
	return rc;
}

/* The kernel's state of the transport checksum (linux/skbuff.h). */
enum kerb_sum {
	KERB_SUM_NONE = 0,	  /* complete */
	KERB_SUM_UNNECESSARY = 1, /* complete, and verified */
	/* complete; the kernel has the sum of the whole packet, which changes have to update */
	KERB_SUM_COMPLETE = 2,
	/* left to the device: the field holds the sum of the pseudo-header alone, not
	 * complemented */
	KERB_SUM_PARTIAL = 3,
};

struct sk_buff___kerb {
	__u8 ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* Returns enum kerb_sum, or -1 if programs cannot read it, which is before Linux 6.2. A few
 * instructions, no call. */
static __always_inline int kerb_summed(kerb_ctx *ctx)
{
	struct sk_buff___kerb *skb;

	if (!bpf_cast_to_kern_ctx)
		return -1;
	skb = bpf_cast_to_kern_ctx(ctx);
	return BPF_CORE_READ_BITFIELD(skb, ip_summed);
}

/* Returns whether the sender has left the transport checksum to the device (CHECKSUM_PARTIAL): the
 * field then holds only the sum of the pseudo-header, not complemented. A program cannot read the
 * state, but can distinguish the four states by the operations that each one permits, which leave
 * the packet unchanged. Do not use it for every packet: it makes five calls. */
static __always_inline int kerb_is_partial(const struct kerb_pkt *pkt)
{
	if (bpf_csum_level(pkt->ctx, BPF_CSUM_LEVEL_QUERY) >= 0)
		return 0; /* CHECKSUM_UNNECESSARY */
	bpf_csum_level(pkt->ctx, BPF_CSUM_LEVEL_INC);
	if (bpf_csum_level(pkt->ctx, BPF_CSUM_LEVEL_QUERY) >= 0) {
		bpf_csum_level(pkt->ctx, BPF_CSUM_LEVEL_DEC);
		return 0; /* CHECKSUM_NONE */
	}
	return bpf_csum_update(pkt->ctx, 0) < 0; /* otherwise CHECKSUM_COMPLETE */
}

#endif

/* Differences to add to a checksum: ones' complement sums of 16-bit words, not folded yet. */
static __always_inline __u64 kerb_diff16(__be16 from, __be16 to)
{
	return (__u64)(__u16)~from + to;
}

static __always_inline __u64 kerb_diff32(__be32 from, __be32 to)
{
	return (__u64)(__u32)~from + to;
}

/* Folds a sum to 16 bits; the result is 0 only if the sum is. */
static __always_inline __u16 kerb_fold(__u64 sum)
{
	__u32 halves;

	sum = (sum & 0xffffffff) + (sum >> 32);
	halves = sum + (sum >> 32);
	/* the carry of the lower half is added to the upper one */
	return (halves + (halves >> 16 | halves << 16)) >> 16;
}

/* RFC 1624, equation 3. */
static __always_inline __u16 kerb_csum(__u16 check, __u64 diff)
{
	return ~kerb_fold((__u64)(__u16)~check + diff);
}

/* Offset of the checksum within the header of a transport protocol, or -1. */
static __always_inline int kerb_check_offset(__u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return 16;
	case IPPROTO_UDP:
		return 6;
	case IPPROTO_ICMPV6:
		return 2;
	}
	return -1;
}

/* Adds diff to the transport checksum. pseudo: the change is one of the pseudo-header. */
static __always_inline int kerb_fix_l4(struct kerb_pkt *pkt, __u64 diff, int pseudo)
{
	int off = pkt->flags & KERB_F_L4 ? kerb_check_offset(pkt->proto) : -1,
	    is_udp = pkt->proto == IPPROTO_UDP;

	if (off < 0)
		return 0;
#ifdef KERB_HOOK_XDP
	__u16 *check = kerb_at(pkt, pkt->l4 + off, sizeof(*check));
	__u16 sum;

	if (!check)
		return -EFAULT;
	if (is_udp && !*check)
		return 0;
	sum = kerb_csum(*check, diff);
	*check = is_udp && !sum ? 0xffff : sum;
	return 0;
#else
	int rc = bpf_l4_csum_replace(pkt->ctx, pkt->l4 + off, 0, kerb_fold(diff),
				     (pseudo ? BPF_F_PSEUDO_HDR : 0) |
					     (is_udp ? BPF_F_MARK_MANGLED_0 : 0));

	kerb_reload(pkt);
	return rc;
#endif
}

#endif
