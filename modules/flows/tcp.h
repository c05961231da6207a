/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Evaluates TCP headers: the initiator of a connection, the time of the handshake, and
 * retransmits. */
#ifndef FLOWS_TCP_H
#define FLOWS_TCP_H

#include <kerb/l4.h>

#include "table.h"

/* A segment, host byte order. */
struct flows_segment {
	__u32 seq, ack;
	__u32 space; /* of sequence numbers: payload, SYN and FIN */
	__u8 flags;
	bool syn;
};

/* A SYN: a connection begins, unless it is a retransmit. */
static __always_inline void flows_syn(struct flows_value *v, struct flows_side *own,
				      struct flows_side *other, __u32 side, __u32 end)
{
	if (v->handshake && v->initiator == side && own->known && end == own->next) {
		own->retransmits++;
		v->handshake = FLOWS_AMBIGUOUS;
		return;
	}
	v->connections++;
	v->initiator = side;
	v->to_responder = v->to_initiator = 0;
	v->handshake = FLOWS_SYN;
	own->opened = bpf_ktime_get_ns();
	own->next = end;
	own->known = 1;
	other->known = 0;
	own->tcp_flags = other->tcp_flags = 0;
}

static __always_inline void flows_syn_ack(struct flows_value *v, struct flows_side *own,
					  const struct flows_side *other, __u32 side,
					  const struct flows_segment *s)
{
	__u32 end = s->seq + s->space;

	if (own->known && end == own->next) {
		own->retransmits++;
		if (v->handshake == FLOWS_SYN_ACK)
			v->handshake = FLOWS_AMBIGUOUS;
		return;
	}
	if (!v->connections) { /* the SYN was not seen */
		v->connections = 1;
		v->initiator = !side;
	}
	if (v->handshake == FLOWS_SYN && v->initiator != side && s->ack == other->next) {
		own->opened = bpf_ktime_get_ns();
		v->to_responder = own->opened - other->opened;
		v->handshake = FLOWS_SYN_ACK;
	}
	own->next = end;
	own->known = 1;
}

/* Sequence numbers of segments other than SYN and RST: a segment that begins before the last new
 * byte is a retransmit, or was reordered on its path. */
static __always_inline void flows_sequence(struct flows_side *own, const struct flows_segment *s)
{
	__u32 end = s->seq + s->space;

	if (!s->space)
		return;
	if (own->known && (__s32)(s->seq - own->next) < 0)
		own->retransmits++;
	if (!own->known || (__s32)(end - own->next) > 0)
		own->next = end;
	own->known = 1;
}

static __always_inline void flows_tcp(struct flows_value *v, struct flows_side *own,
				      struct flows_side *other, __u32 side,
				      const struct flows_segment *s)
{
	if (s->syn && !(s->flags & (KERB_TCP_ACK | KERB_TCP_RST)))
		flows_syn(v, own, other, side, s->seq + s->space);
	else if (s->syn && !(s->flags & KERB_TCP_RST))
		flows_syn_ack(v, own, other, side, s);
	else if (!(s->flags & KERB_TCP_RST)) {
		if (v->handshake == FLOWS_SYN_ACK && v->initiator == side &&
		    s->flags & KERB_TCP_ACK && s->ack == other->next) {
			v->to_initiator = bpf_ktime_get_ns() - other->opened;
			v->handshake = FLOWS_DONE;
		}
		flows_sequence(own, s);
	}
	if ((own->tcp_flags & s->flags) != s->flags)
		own->tcp_flags |= s->flags;
}

#endif
