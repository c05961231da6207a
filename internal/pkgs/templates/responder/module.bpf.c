// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore
/* Answers requests over UDP in the kernel, with the number of the request and how many were
 * answered on this CPU. */
#include <stdbool.h>
#include <kerb/respond.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u16, port, 9999);
KERB_CONFIG(bool, partial, false);

/* Request and reply, in network byte order. */
struct message {
	__be32 number; /* returned unchanged */
	__be32 answered;
};

/* Requests that were answered. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} answered SEC(".maps");

/* Returns whether the packet is a request that can be answered; others pass to the program on the
 * port. */
static __always_inline bool is_request(struct kerb_request *r, struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	int fault;

	if (!udp || udp->dest != bpf_htons(port))
		return false;
	kerb_forget(pkt);
	if (kerb_request_read(r, pkt, udp) || r->len != sizeof(struct message))
		return false;
	fault = kerb_request_verify(r);
	return !fault || (partial && fault == KERB_REQUEST_PARTIAL);
}

/* Your logic: turns a request into its reply. Returns false if there is none. */
static __always_inline bool answer(struct message *m)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&answered, &zero);

	if (!count)
		return false;
	*count += 1;
	m->answered = bpf_htonl(*count);
	return true;
}

KERB_INGRESS(pkt)
{
	struct kerb_request r;
	struct message *request, reply;

	if (!is_request(&r, pkt))
		return KERB_NEXT;
	request = kerb_request_at(&r, 0, sizeof(*request));
	if (!request)
		return KERB_NEXT;
	reply = *request;
	if (!answer(&reply))
		return KERB_NEXT;
	if (kerb_reply_begin(&r, sizeof(reply)) || kerb_reply_store(&r, 0, &reply, sizeof(reply)))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	return kerb_reply_finish(&r);
}
