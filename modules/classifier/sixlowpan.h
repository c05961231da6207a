/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* 6LoWPAN (RFC 4944, RFC 6282) down to the kind of RPL message (RFC 6550): mesh and broadcast
 * headers, fragments, IPHC, NHC of extension headers, uncompressed IPv6. Unsupported formats
 * (HC1, 6LoRH, tunnels) are messages of kind other. */
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
#define CLS_RPL_SECURE	   0x80 /* bit of the code: the message starts with a security section */

/* Sets the interface identifier of the source, unless it is 0 (unspecified address). */
static __always_inline void cls_ip_source(struct cls_frame *f, __u64 id)
{
	if (id)
		f->id = id;
}

/* Parses ICMPv6, from the type on: sets the kind of the message. */
static __always_inline int cls_icmp6_parse(struct cls_frame *f)
{
	__u8 code;

	if (!cls_frame_has(f, 4))
		return CLS_TRUNCATED;
	if (cls_byte(f, 0) != CLS_ICMPV6_RPL)
		return CLS_MESSAGE;
	code = cls_byte(f, 1);
	f->rpl = 1;
	f->kind = (code & ~CLS_RPL_SECURE) <= CLS_RPL_DAO_ACK ? code & ~CLS_RPL_SECURE
							      : CLS_RPL_CONTROL;
	if (code == CLS_RPL_DIO && cls_frame_has(f, 8)) { /* checksum, instance, version, rank */
		f->has_dio = 1;
		f->version = cls_byte(f, 5);
		f->rank = cls_be16(f, 6);
	}
	return CLS_MESSAGE;
}

/* Parses uncompressed extension headers, from f->next on. */
static __always_inline int cls_ip_payload(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_EXT_MAX; i++) {
		__u8 next = f->next;

		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_MH)
			break;
		if (!cls_frame_has(f, 8))
			return CLS_TRUNCATED;
		f->next = cls_byte(f, 0);
		f->off += (cls_byte(f, 1) + 1) * 8;
		if (f->off > f->end)
			return CLS_TRUNCATED;
	}
	return f->next == IPPROTO_ICMPV6 ? cls_icmp6_parse(f) : CLS_MESSAGE;
}

/* Parses compressed extension headers (RFC 6282, 4.2), whose lengths are in bytes. */
static __always_inline int cls_nhc_parse(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_EXT_MAX; i++) {
		__u8 nhc, id;

		if (!cls_frame_has(f, 1))
			return CLS_TRUNCATED;
		nhc = cls_byte(f, 0);
		id = nhc >> 1 & 7;
		/* UDP, fragment header, IPv6 in IPv6 */
		if ((nhc & 0xf0) != CLS_NHC_EXT || id == 2 || id > 4)
			return CLS_MESSAGE;
		if (!cls_frame_has(f, 3))
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

static __always_inline int cls_ip6_parse(struct cls_frame *f)
{
	if (!cls_frame_has(f, CLS_IP6_LEN))
		return CLS_TRUNCATED;
	if (cls_byte(f, 0) >> 4 != 6)
		return CLS_MALFORMED;
	f->next = cls_byte(f, 6);
	cls_ip_source(f, cls_be64(f, 16));
	f->off += CLS_IP6_LEN;
	return cls_ip_payload(f);
}

/* Lengths of an IPHC address in bytes: byte n of these numbers is for address mode n. */
#define CLS_IPHC_UNICAST      0x00020810 /* 16, 8, 2, 0 */
#define CLS_IPHC_CONTEXT      0x00020800 /* :: (as destination reserved), 8, 2, 0 */
#define CLS_IPHC_MULTICAST    0x01040610 /* 16, 6, 4, 1 */
#define CLS_IPHC_MULTICAST_DAC 0x06	 /* 6, reserved */

static __always_inline __u32 cls_iphc_len(__u32 lengths, __u32 mode)
{
	return lengths >> (mode * 8) & 0xff;
}

/* Parses the source: a full address, its interface identifier, 16 bits of it, or elided, in which
 * case it is the link address, which is set already. */
static __always_inline int cls_iphc_source(struct cls_frame *f, __u8 flags)
{
	__u32 context = flags & 0x40, mode = flags >> 4 & 3,
	      len = cls_iphc_len(context ? CLS_IPHC_CONTEXT : CLS_IPHC_UNICAST, mode);

	if (!cls_frame_has(f, len))
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

static __always_inline int cls_iphc_parse(struct cls_frame *f)
{
	__u8 first, flags;
	__u32 traffic, skip;
	int rc;

	if (!cls_frame_has(f, 2))
		return CLS_TRUNCATED;
	first = cls_byte(f, 0);
	flags = cls_byte(f, 1);
	traffic = first >> 3 & 3;
	/* context extension, traffic class and flow label */
	skip = 2 + (flags >> 7) + (0x00010304 >> (traffic * 8) & 0xff);
	if (!cls_frame_has(f, skip + !(first & 4) + !(first & 3))) /* next header, hop limit */
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
	return first & 4 ? cls_nhc_parse(f) : cls_ip_payload(f);
}

/* Parses a mesh header (RFC 4944, 5.2): the source is the originator, not the sender of the
 * frame. */
static __always_inline int cls_mesh_parse(struct cls_frame *f)
{
	__u8 first = cls_byte(f, 0);
	__u32 originator = first & 0x20 ? 2 : 8, final = first & 0x10 ? 2 : 8;

	f->off += (first & 0xf) == 0xf ? 2 : 1; /* deep hops left */
	if (!cls_frame_has(f, originator + final))
		return CLS_TRUNCATED;
	f->id = originator == 2 ? cls_short_id(cls_be16(f, 0)) : cls_long_id(cls_be64(f, 0));
	f->off += originator + final;
	return 0;
}

/* Parses the headers before the datagram. Returns 0 at the dispatch of the datagram, otherwise the
 * outcome + 1. */
static __always_inline int cls_lowpan_prefix(struct cls_frame *f)
{
	if (cls_frame_has(f, 1) && (cls_byte(f, 0) & 0xc0) == 0x80) {
		int rc = cls_mesh_parse(f);

		if (rc)
			return rc + 1;
	}
	if (cls_frame_has(f, 2) && cls_byte(f, 0) == CLS_DISPATCH_BC0)
		f->off += 2;
	if (!cls_frame_has(f, 1))
		return 0;
	if ((cls_byte(f, 0) & 0xd8) != CLS_DISPATCH_FRAG1)
		return 0;
	if (!cls_frame_has(f, 4))
		return CLS_TRUNCATED + 1;
	f->size = cls_be16(f, 0) & 0x7ff;
	f->tag = cls_be16(f, 2);
	if (cls_byte(f, 0) >= CLS_DISPATCH_FRAGN)
		return CLS_FRAGMENT + 1;
	f->off += 4;
	return 0;
}

static __always_inline int cls_lowpan_parse(struct cls_frame *f)
{
	int rc = cls_lowpan_prefix(f);
	__u8 dispatch;

	if (rc)
		return rc - 1;
	if (!cls_frame_has(f, 1))
		return CLS_MESSAGE;
	dispatch = cls_byte(f, 0);
	if (dispatch == CLS_DISPATCH_IPV6) {
		f->off += 1;
		return cls_ip6_parse(f);
	}
	return dispatch >> 5 == 3 ? cls_iphc_parse(f) : CLS_MESSAGE;
}

#endif
