// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The speed limit over TCP, answered in the receive path of the socket (Linux 5.13). A segment that
 * holds whole requests and nothing else is rewritten into the replies and sent on the same socket.
 * After the first segment that does not, the server handles the connection permanently: from then
 * on this program knows neither where a request begins nor what the server still has to answer.
 * There is no stream parser, since for each request that it cuts out, the verdict program sees the
 * first bytes of the segment. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REPLY 3
#define GET_SPEED_LIMIT 4
#define LIMIT 120
#define MAX_REQUESTS	16 /* in a segment */

struct peer {
	__u32 address, port; /* network order; port as in struct __sk_buff */
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 4096);
	__type(key, struct peer);
	__type(value, __u64);
} sockets SEC(".maps");

/* Connections that the server handles. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct peer);
	__type(value, __u8);
} passed SEC(".maps");

struct message {
	__u32 op, value;
};

static __always_inline int holds_only_requests(struct __sk_buff *skb)
{
	struct message *m = (void *)(long)skb->data;

	for (int i = 0; i < MAX_REQUESTS && i * sizeof(*m) < skb->len; i++, m++)
		if ((void *)(m + 1) > (void *)(long)skb->data_end || m->op != GET_SPEED_LIMIT ||
		    m->value)
			return 0;
	return skb->len && skb->len <= MAX_REQUESTS * sizeof(*m);
}

SEC("sk_skb")
int verdict(struct __sk_buff *skb)
{
	struct peer key = { skb->remote_ip4, skb->remote_port };
	__u8 yes = 1;

	if (bpf_map_lookup_elem(&passed, &key))
		return SK_PASS;
	if (bpf_skb_pull_data(skb, skb->len) || !holds_only_requests(skb)) {
		bpf_map_update_elem(&passed, &key, &yes, BPF_ANY);
		return SK_PASS;
	}
	struct message *m = (void *)(long)skb->data;

	for (int i = 0; i < MAX_REQUESTS && (void *)(m + 1) <= (void *)(long)skb->data_end;
	     i++, m++) {
		m->op = REPLY;
		m->value = LIMIT;
	}
	return bpf_sk_redirect_hash(skb, &sockets, &key, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
