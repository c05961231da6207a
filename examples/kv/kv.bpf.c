// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* A key-value store over UDP, with keys of 7 bytes and values of 8. Requests and replies have 16
 * bytes: an operation, the key, the value. Requests: G gets, S sets. Replies: V with the value, N
 * if there is none. */
#include <stdbool.h>
#include <kerb/respond.h>

KERB_LICENSE("Dual BSD/GPL");

KERB_CONFIG(__u16, port, 7777);
KERB_CONFIG(bool, writable, false);
KERB_CONFIG(bool, partial, false);

struct message {
	__u8 op, key[7];
	__u64 value;
};

/* Written by the data plane. When it is full, the least recently used key is evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, __u64);
} values SEC(".maps");

/* Returns whether the packet is a request that can be answered; others pass. */
static __always_inline bool kv_is_request(struct kerb_request *r, struct kerb_pkt *pkt)
{
	struct udphdr *udp = kerb_udp(pkt);
	int fault;

	if (!udp || udp->dest != bpf_htons(port))
		return false;
	/* so that the verifier walks the rest once, not for each path through the parser */
	kerb_forget(pkt);
	if (kerb_request_read(r, pkt, udp))
		return false;
	if (r->len != sizeof(struct message))
		return false;
	fault = kerb_request_verify(r);
	return !fault || (partial && fault == KERB_REQUEST_PARTIAL);
}

/* Executes a request and turns it into its reply. Returns false if it is not valid. */
static __always_inline bool kv_execute(struct message *m)
{
	__u8 op = m->op;
	__u64 key, *found;

	m->op = 0;
	key = *(__u64 *)m;
	if (op == 'S' && writable) {
		bpf_map_update_elem(&values, &key, &m->value, BPF_ANY);
	} else if (op != 'G') {
		return false;
	}
	found = bpf_map_lookup_elem(&values, &key);
	m->op = found ? 'V' : 'N';
	m->value = found ? *found : 0;
	return true;
}

KERB_INGRESS(pkt)
{
	struct kerb_request r;
	struct message *m, reply;

	if (!kv_is_request(&r, pkt))
		return KERB_NEXT;
	m = kerb_request_at(&r, 0, sizeof(*m));
	if (!m)
		return KERB_NEXT;
	reply = *m;
	if (!kv_execute(&reply))
		return KERB_NEXT;
	if (kerb_reply_begin(&r, sizeof(reply)) || kerb_reply_store(&r, 0, &reply, sizeof(reply)))
		return kerb_drop(pkt, KERB_DROP_NO_MEMORY);
	return kerb_reply_finish(&r);
}
