/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* 6LoWPAN (RFC 4944, RFC 6282) down to the kind of RPL message (RFC 6550): mesh and broadcast
 * headers, fragments, IPHC, NHC of extension headers, uncompressed IPv6. What is not known here
 * (HC1, 6LoRH, tunnels) is a message of kind other. */
#ifndef CLS_SIXLOWPAN_H
#define CLS_SIXLOWPAN_H

#include "ieee802154.h"

#define CLS_DISPATCH_IPV6  0x41
#define CLS_DISPATCH_BC0   0x50
#define CLS_DISPATCH_FRAG1 0xc0 /* 11000xxx */
#define CLS_DISPATCH_FRAGN 0xe0 /* 11100xxx */
#define CLS_NHC_EXT	   0xe0 /* 1110 EEE N */
#define CLS_IP6_LEN	   40
#define CLS_EXT_MAX	   4 /* extension headers followed */
#define CLS_ICMPV6_RPL	   155
#define CLS_RPL_SECURE	   0x80 /* in the code: the message begins with a security section */

/* Takes an interface identifier for the source, unless it is that of no address. */
static __always_inline void cls_ip_source(struct cls_frame *f, __u64 id)
{
	if (id)
		f->id = id;
}

/* ICMPv6: finds the kind. The walk is at the type. */
static __always_inline int cls_icmp6(struct cls_frame *f)
{
	__u8 code;

	if (!cls_left(f, 4))
		return CLS_TRUNCATED;
	if (cls_byte(f, 0) != CLS_ICMPV6_RPL)
		return CLS_MESSAGE;
	code = cls_byte(f, 1);
	f->rpl = 1;
	f->kind = (code & ~CLS_RPL_SECURE) <= CLS_RPL_DAO_ACK ? code & ~CLS_RPL_SECURE
							      : CLS_RPL_CONTROL;
	if (code == CLS_RPL_DIO && cls_left(f, 8)) { /* checksum, instance, version, rank */
		f->has_dio = 1;
		f->version = cls_byte(f, 5);
		f->rank = cls_be16(f, 6);
	}
	return CLS_MESSAGE;
}

/* Extension headers as IPv6 has them, from f->next on. */
static __always_inline int cls_ip_payload(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_EXT_MAX; i++) {
		__u8 next = f->next;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_MH)
			break;
		if (!cls_left(f, 8))
			return CLS_TRUNCATED;
		f->next = cls_byte(f, 0);
		f->off += (cls_byte(f, 1) + 1) * 8;
		if (f->off > f->end)
			return CLS_TRUNCATED;
	}
	return f->next == IPPROTO_ICMPV6 ? cls_icmp6(f) : CLS_MESSAGE;
}

/* Compressed extension headers (RFC 6282, 4.2): lengths are in bytes. */
static __always_inline int cls_nhc(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_EXT_MAX; i++) {
		__u8 nhc, id;

		if (!cls_left(f, 1))
			return CLS_TRUNCATED;
		nhc = cls_byte(f, 0);
		id = nhc >> 1 & 7;
		/* UDP, fragment header, IPv6 in IPv6 */
		if ((nhc & 0xf0) != CLS_NHC_EXT || id == 2 || id > 4)
			return CLS_MESSAGE;
		if (!cls_left(f, 3))
			return CLS_TRUNCATED;
		if (nhc & 1) {
			f->off += 2 + cls_byte(f, 1);
		} else {
			f->next = cls_byte(f, 1);
			f->off += 3 + cls_byte(f, 2);
		}
		if (f->off > f->end)
			return CLS_TRUNCATED;
		if (!(nhc & 1))
			return cls_ip_payload(f);
	}
	return CLS_MESSAGE;
}

static __always_inline int cls_ip6(struct cls_frame *f)
{
	if (!cls_left(f, CLS_IP6_LEN))
		return CLS_TRUNCATED;
	if (cls_byte(f, 0) >> 4 != 6)
		return CLS_MALFORMED;
	f->next = cls_byte(f, 6);
	cls_ip_source(f, cls_be64(f, 16));
	f->off += CLS_IP6_LEN;
	return cls_ip_payload(f);
}

/* Bytes of an IPHC address: by its two mode bits, in the bytes of a number. */
#define CLS_IPHC_UNICAST      0x00020810 /* 16, 8, 2, 0 */
#define CLS_IPHC_CONTEXT      0x00020800 /* :: (as destination reserved), 8, 2, 0 */
#define CLS_IPHC_MULTICAST    0x01040610 /* 16, 6, 4, 1 */
#define CLS_IPHC_MULTICAST_DAC 0x06	 /* 6, reserved */

static __always_inline __u32 cls_iphc_len(__u32 lengths, __u32 mode)
{
	return lengths >> (mode * 8) & 0xff;
}

/* The source: in full, by its interface identifier, by 16 bits of it, or by the link address, which
 * is there already. */
static __always_inline int cls_iphc_source(struct cls_frame *f, __u8 flags)
{
	__u32 context = flags & 0x40, mode = flags >> 4 & 3,
	      len = cls_iphc_len(context ? CLS_IPHC_CONTEXT : CLS_IPHC_UNICAST, mode);

	if (!cls_left(f, len))
		return CLS_TRUNCATED;
	if (len == 16)
		cls_ip_source(f, cls_be64(f, 8));
	else if (len == 8)
		cls_ip_source(f, cls_be64(f, 0));
	else if (len == 2)
		cls_ip_source(f, cls_short_id(cls_be16(f, 0)));
	f->off += len;
	return 0;
}

static __always_inline int cls_iphc_destination(struct cls_frame *f, __u8 flags)
{
	__u32 mode = flags & 3, len;

	if (flags & 8) { /* multicast */
		if (flags & 4 && mode)
			return CLS_MALFORMED;
		len = cls_iphc_len(flags & 4 ? CLS_IPHC_MULTICAST_DAC : CLS_IPHC_MULTICAST, mode);
	} else {
		if (flags & 4 && !mode)
			return CLS_MALFORMED;
		len = cls_iphc_len(flags & 4 ? CLS_IPHC_CONTEXT : CLS_IPHC_UNICAST, mode);
	}
	f->off += len;
	return f->off > f->end ? CLS_TRUNCATED : 0;
}

static __always_inline int cls_iphc(struct cls_frame *f)
{
	__u8 first, flags;
	__u32 traffic, skip;
	int rc;

	if (!cls_left(f, 2))
		return CLS_TRUNCATED;
	first = cls_byte(f, 0);
	flags = cls_byte(f, 1);
	traffic = first >> 3 & 3;
	/* context extension, traffic class and flow label */
	skip = 2 + (flags >> 7) + (0x00010304 >> (traffic * 8) & 0xff);
	if (!cls_left(f, skip + !(first & 4) + !(first & 3))) /* next header, hop limit */
		return CLS_TRUNCATED;
	f->off += skip;
	if (!(first & 4)) {
		f->next = cls_byte(f, 0);
		f->off += 1;
	}
	f->off += !(first & 3);
	rc = cls_iphc_source(f, flags) ?: cls_iphc_destination(f, flags);
	if (rc)
		return rc;
	return first & 4 ? cls_nhc(f) : cls_ip_payload(f);
}

/* Mesh header (RFC 4944, 5.2): the originator is the source, regardless of the frame's sender. */
static __always_inline int cls_mesh(struct cls_frame *f)
{
	__u8 first = cls_byte(f, 0);
	__u32 originator = first & 0x20 ? 2 : 8, final = first & 0x10 ? 2 : 8;

	f->off += (first & 0xf) == 0xf ? 2 : 1; /* deep hops left */
	if (!cls_left(f, originator + final))
		return CLS_TRUNCATED;
	f->id = originator == 2 ? cls_short_id(cls_be16(f, 0)) : cls_long_id(cls_be64(f, 0));
	f->off += originator + final;
	return 0;
}

/* The headers that stand before the datagram. 0: the walk is at its dispatch; else the outcome +
 * 1. */
static __always_inline int cls_lowpan_prefix(struct cls_frame *f)
{
	if (cls_left(f, 1) && (cls_byte(f, 0) & 0xc0) == 0x80) {
		int rc = cls_mesh(f);

		if (rc)
			return rc + 1;
	}
	if (cls_left(f, 2) && cls_byte(f, 0) == CLS_DISPATCH_BC0)
		f->off += 2;
	if (!cls_left(f, 1))
		return 0;
	if ((cls_byte(f, 0) & 0xd8) != CLS_DISPATCH_FRAG1)
		return 0;
	if (!cls_left(f, 4))
		return CLS_TRUNCATED + 1;
	f->size = cls_be16(f, 0) & 0x7ff;
	f->tag = cls_be16(f, 2);
	if (cls_byte(f, 0) >= CLS_DISPATCH_FRAGN)
		return CLS_FRAGMENT + 1;
	f->off += 4;
	return 0;
}

static __always_inline int cls_lowpan(struct cls_frame *f)
{
	int rc = cls_lowpan_prefix(f);
	__u8 dispatch;

	if (rc)
		return rc - 1;
	if (!cls_left(f, 1))
		return CLS_MESSAGE;
	dispatch = cls_byte(f, 0);
	if (dispatch == CLS_DISPATCH_IPV6) {
		f->off += 1;
		return cls_ip6(f);
	}
	return dispatch >> 5 == 3 ? cls_iphc(f) : CLS_MESSAGE;
}

#endif
