// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The speed limit over TCP, answered on the socket's own way in (Linux 5.13): segments that hold
 * whole requests and nothing else become the replies and go out of the same socket. The first that
 * does not leaves the connection to the server, for good, since from then on this program does not
 * know where a request begins, nor what the server has yet to answer. No stream parser cuts
 * requests out: programs see a segment's first bytes, whichever request of it they are asked
 * about. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REPLY 3
#define GET_SPEED_LIMIT 4
#define LIMIT 120
#define MOST_REQUESTS 16 /* in a segment */

struct peer {
	__u32 address, port; /* network order; port as in struct __sk_buff */
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 4096);
	__type(key, struct peer);
	__type(value, __u64);
} sockets SEC(".maps");

/* Connections that are the server's alone. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct peer);
	__type(value, __u8);
} latched SEC(".maps");

struct message {
	__u32 op, value;
};

static __always_inline int all_requests(struct __sk_buff *skb)
{
	struct message *m = (void *)(long)skb->data;

	for (int i = 0; i < MOST_REQUESTS && i * sizeof(*m) < skb->len; i++, m++)
		if ((void *)(m + 1) > (void *)(long)skb->data_end || m->op != GET_SPEED_LIMIT ||
		    m->value)
			return 0;
	return skb->len && skb->len <= MOST_REQUESTS * sizeof(*m);
}

SEC("sk_skb")
int verdict(struct __sk_buff *skb)
{
	struct peer key = { skb->remote_ip4, skb->remote_port };
	__u8 yes = 1;

	if (bpf_map_lookup_elem(&latched, &key))
		return SK_PASS;
	if (bpf_skb_pull_data(skb, skb->len) || !all_requests(skb)) {
		bpf_map_update_elem(&latched, &key, &yes, BPF_ANY);
		return SK_PASS;
	}
	struct message *m = (void *)(long)skb->data;

	for (int i = 0; i < MOST_REQUESTS && (void *)(m + 1) <= (void *)(long)skb->data_end;
	     i++, m++) {
		m->op = REPLY;
		m->value = LIMIT;
	}
	return bpf_sk_redirect_hash(skb, &sockets, &key, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
