// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* The speed limit over TCP, answered on the socket's own way in: `length` cuts the stream into requests, `verdict` makes
 * each the reply and sends it out of the same socket. What is no such request goes up to the server. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define REPLY 3
#define GET_SPEED_LIMIT 4
#define LIMIT 120

struct peer {
	__u32 address, port; /* network order; port as in struct __sk_buff */
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, struct peer);
	__type(value, __u64);
} sockets SEC(".maps");

struct message {
	__u32 op, value;
};

/* length of the first message in what has come; the parser waits for the rest of it. */
SEC("sk_skb/stream_parser")
int length(struct __sk_buff *skb)
{
	return sizeof(struct message);
}

SEC("sk_skb/stream_verdict")
int verdict(struct __sk_buff *skb)
{
	struct peer key = { skb->remote_ip4, skb->remote_port };

	if (bpf_skb_pull_data(skb, sizeof(struct message)))
		return SK_PASS;
	struct message *m = (void *)(long)skb->data;

	if ((void *)(m + 1) > (void *)(long)skb->data_end || m->op != GET_SPEED_LIMIT)
		return SK_PASS;
	m->op = REPLY;
	m->value = LIMIT;
	return bpf_sk_redirect_hash(skb, &sockets, &key, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
