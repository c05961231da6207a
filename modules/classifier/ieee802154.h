/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The MAC header of IEEE 802.15.4: frame versions 2003, 2006 and 2015, all addressing modes.
 * Numbers are little endian on the air. The position in the frame lives in memory (volatile): the
 * verifier would follow each of its values in a register. */
#ifndef CLS_IEEE802154_H
#define CLS_IEEE802154_H

#include "maps.h"

/* aMaxPHYPacketSize; longer frames (802.15.4g) are parsed up to this length */
#define CLS_FRAME_MAX 127

/* The result of parsing a frame. */
enum cls_outcome {
	CLS_MESSAGE = 0,
	CLS_FRAGMENT = 1, /* a later one */
	CLS_SECURED = 2,
	CLS_NO_SOURCE = 3,
	CLS_TRUNCATED = 4,
	CLS_MALFORMED = 5,
	CLS_NOT_OURS = 6,
};

/* A frame, and its parsed fields. Addresses are in network byte order, as in IPv6. */
struct cls_frame {
	volatile __u32 off; /* present position */
	volatile __u32 end; /* of the captured frame, excluding the FCS */
	__u64 link;	    /* source address: EUI-64, or the short one in the last two bytes */
	__u64 id;	    /* interface identifier of the source, 0: none */
	__u32 seen;	    /* struct cls_seen.tag, 0: no sequence number */
	__u16 fcf;	    /* frame control, host byte order */
	__u16 pan;	    /* of the source, host byte order */
	__u16 tag, size;    /* of a 6LoWPAN fragment; size 0: none */
	__u16 rank;
	__u8 version;	    /* DODAG version, if has_dio */
	__u8 has_dio;
	__u8 kind; /* CLS_RPL_DIS ... CLS_RPL_OTHER */
	__u8 rpl;
	__u8 broadcast;
	__u8 next;		    /* IPv6 next header at the present position */
	__u8 b[CLS_FRAME_MAX + 17]; /* room for reads of 16 bytes anywhere */
};

#define CLS_BROADCAST 0xffff
#define CLS_FCF_TYPE  7
#define CLS_FCF_DATA  1
#define CLS_FCF_SECURITY (1 << 3)
#define CLS_FCF_PAN	 (1 << 6) /* PAN ID compression */
#define CLS_FCF_NO_SEQ	 (1 << 8) /* 2015 */
#define CLS_FCF_IE	 (1 << 9) /* 2015 */

enum cls_mode {
	CLS_ADDR_NONE = 0,
	CLS_ADDR_RESERVED = 1,
	CLS_ADDR_SHORT = 2,
	CLS_ADDR_EXTENDED = 3,
};

static __always_inline __u32 cls_dst_mode(__u32 fcf)
{
	return fcf >> 10 & 3;
}

static __always_inline __u32 cls_src_mode(__u32 fcf)
{
	return fcf >> 14 & 3;
}

static __always_inline __u32 cls_frame_version(__u32 fcf)
{
	return fcf >> 12 & 3;
}

/* Returns a pointer to offset off. The mask is for the verifier; kerb_opaque keeps the compiler
 * from removing it. */
static __always_inline void *cls_frame_at(struct cls_frame *f, __u64 off)
{
	kerb_opaque(off);
	return f->b + (off & CLS_FRAME_MAX);
}

static __always_inline int cls_frame_has(const struct cls_frame *f, __u32 len)
{
	return f->off + len <= f->end;
}

static __always_inline __u8 cls_byte(struct cls_frame *f, __u32 ahead)
{
	return *(__u8 *)cls_frame_at(f, f->off + ahead);
}

static __always_inline __u16 cls_le16(struct cls_frame *f)
{
	return cls_byte(f, 0) | cls_byte(f, 1) << 8;
}

static __always_inline __u16 cls_be16(struct cls_frame *f, __u32 ahead)
{
	return cls_byte(f, ahead) << 8 | cls_byte(f, ahead + 1);
}

/* Returns eight bytes, in network byte order. */
static __always_inline __u64 cls_be64(struct cls_frame *f, __u32 ahead)
{
	return *(__u64 *)cls_frame_at(f, f->off + ahead);
}

/* Interface identifier of a short address (RFC 6282, 3.2.2). */
static __always_inline __u64 cls_short_id(__u16 addr)
{
	return bpf_cpu_to_be64(0x000000fffe000000ULL | addr);
}

/* The same of an EUI-64: the universal bit inverted (RFC 4291, appendix A). */
static __always_inline __u64 cls_long_id(__u64 eui)
{
	return eui ^ bpf_cpu_to_be64(2ULL << 56);
}

static __always_inline __u32 cls_addr_len(__u32 mode)
{
	return mode == CLS_ADDR_EXTENDED ? 8 : mode == CLS_ADDR_SHORT ? 2 : 0;
}

static __always_inline int cls_has_dst_pan(__u32 fcf)
{
	__u32 dst = cls_dst_mode(fcf), src = cls_src_mode(fcf), compressed = fcf & CLS_FCF_PAN;

	if (cls_frame_version(fcf) < 2)
		return dst != CLS_ADDR_NONE;
	/* IEEE 802.15.4-2015, table 7-2 */
	if (!dst)
		return !src && compressed;
	if (!src || (dst == CLS_ADDR_EXTENDED && src == CLS_ADDR_EXTENDED))
		return !compressed;
	return 1;
}

static __always_inline int cls_has_src_pan(__u32 fcf)
{
	__u32 dst = cls_dst_mode(fcf), src = cls_src_mode(fcf);

	if (!src || fcf & CLS_FCF_PAN)
		return 0;
	return cls_frame_version(fcf) < 2 ||
	       !(dst == CLS_ADDR_EXTENDED && src == CLS_ADDR_EXTENDED);
}

static __always_inline int cls_mac_destination(struct cls_frame *f, __u32 fcf)
{
	__u32 len = cls_addr_len(cls_dst_mode(fcf));

	if (cls_has_dst_pan(fcf)) {
		if (!cls_frame_has(f, 2))
			return CLS_TRUNCATED;
		f->pan = cls_le16(f);
		f->off += 2;
	}
	if (!cls_frame_has(f, len))
		return CLS_TRUNCATED;
	f->broadcast = len == 2 && cls_le16(f) == CLS_BROADCAST;
	f->off += len;
	return 0;
}

static __always_inline int cls_mac_source(struct cls_frame *f, __u32 fcf)
{
	__u32 len = cls_addr_len(cls_src_mode(fcf));

	if (cls_has_src_pan(fcf)) {
		if (!cls_frame_has(f, 2))
			return CLS_TRUNCATED;
		f->pan = cls_le16(f);
		f->off += 2;
	}
	if (!cls_frame_has(f, len))
		return CLS_TRUNCATED;
	if (len == 8) {
		/* on the air the last byte comes first */
		f->link = __builtin_bswap64(cls_be64(f, 0));
		f->id = cls_long_id(f->link);
	} else if (len == 2) {
		f->link = bpf_cpu_to_be64((__u64)cls_le16(f));
		f->id = cls_short_id(cls_le16(f));
	}
	f->off += len;
	return 0;
}

#define CLS_IE_MAX	   6 /* of each sort in a frame */
#define CLS_IE_END_PAYLOAD 0x7e /* header termination 1: payload IEs follow */
#define CLS_IE_END	   0x7f /* header termination 2: the payload follows */
#define CLS_IE_GROUP_END   0xf

/* Header IEs: 0 when payload IEs follow, 1 when the payload does. */
static __always_inline int cls_mac_header_ies(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_IE_MAX; i++) {
		__u32 ie, id;

		if (f->off == f->end)
			return 1;
		if (!cls_frame_has(f, 2))
			return -CLS_TRUNCATED;
		ie = cls_le16(f);
		id = ie >> 7 & 0xff;
		if (ie & 0x8000)
			return -CLS_MALFORMED;
		f->off += 2 + (ie & 0x7f);
		if (f->off > f->end)
			return -CLS_TRUNCATED;
		if (id == CLS_IE_END_PAYLOAD || id == CLS_IE_END)
			return id == CLS_IE_END;
	}
	return -CLS_MALFORMED;
}

static __always_inline int cls_mac_payload_ies(struct cls_frame *f)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < CLS_IE_MAX; i++) {
		__u32 ie;

		if (f->off == f->end)
			return 0;
		if (!cls_frame_has(f, 2))
			return CLS_TRUNCATED;
		ie = cls_le16(f);
		if (!(ie & 0x8000))
			return CLS_MALFORMED;
		f->off += 2 + (ie & 0x7ff);
		if (f->off > f->end)
			return CLS_TRUNCATED;
		if ((ie >> 11 & 0xf) == CLS_IE_GROUP_END)
			return 0;
	}
	return CLS_MALFORMED;
}

/* Returns the tag by which repeated frames are recognized: a hash of the link source address, with
 * the sequence number in the low byte. */
static __always_inline __u32 cls_seen_tag(const struct cls_frame *f, __u8 seq)
{
	__u64 link = bpf_be64_to_cpu(f->link) * 0x9e3779b97f4a7c15ULL;

	return (__u32)(link >> 32 & ~0xffULL) | 0x100 | seq;
}

/* Parses the MAC header up to the payload. Returns 0 if it is data that can be read. */
static __always_inline int cls_mac_parse(struct cls_frame *f)
{
	__u32 fcf, version;
	int rc, has_seq;
	__u8 seq = 0;

	if (!cls_frame_has(f, 2))
		return CLS_TRUNCATED;
	fcf = f->fcf = cls_le16(f);
	f->off += 2;
	version = cls_frame_version(fcf);
	if ((fcf & CLS_FCF_TYPE) != CLS_FCF_DATA)
		return CLS_NO_SOURCE;
	if (version == 3 || cls_dst_mode(fcf) == CLS_ADDR_RESERVED ||
	    cls_src_mode(fcf) == CLS_ADDR_RESERVED)
		return CLS_MALFORMED;
	has_seq = version < 2 || !(fcf & CLS_FCF_NO_SEQ);
	if (!cls_frame_has(f, has_seq))
		return CLS_TRUNCATED;
	if (has_seq)
		seq = cls_byte(f, 0);
	f->off += has_seq;
	f->pan = CLS_BROADCAST;
	rc = cls_mac_destination(f, fcf) ?: cls_mac_source(f, fcf);
	if (rc)
		return rc;
	if (has_seq)
		f->seen = cls_seen_tag(f, seq);
	if (fcf & CLS_FCF_SECURITY)
		return CLS_SECURED;
	if (version < 2 || !(fcf & CLS_FCF_IE))
		return 0;
	rc = cls_mac_header_ies(f);
	return rc < 0 ? -rc : rc ? 0 : cls_mac_payload_ies(f);
}

#endif
