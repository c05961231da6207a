/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Enrolment of sockets, and matching of the two ends of a connection. The client is checked when it
 * connects (in its process); when it is established it enrols and offers its pair of sequence
 * numbers. The server answers the offer when it is established, which is always later. */
#ifndef ACCEL_PAIR_H
#define ACCEL_PAIR_H

#include "remove.h"
#include "program.h"

/* A load that clang does not merge with another one into a load at a variable offset, which the
 * verifier rejects. */
#define accel_ctx_load(field) (*(volatile __u32 *)&(field))

#define accel_ops_address(to, ops, ip4, ip6)                                                    \
	do {                                                                                    \
		__u32 four = accel_ctx_load((ops)->family) == 2 /* AF_INET */,                  \
		      a_ = accel_ctx_load((ops)->ip4), a0_ = accel_ctx_load((ops)->ip6[0]),     \
		      a1_ = accel_ctx_load((ops)->ip6[1]), a2_ = accel_ctx_load((ops)->ip6[2]), \
		      a3_ = accel_ctx_load((ops)->ip6[3]);                                      \
		(to)[0] = four ? 0 : a0_;                                                       \
		(to)[1] = four ? 0 : a1_;                                                       \
		(to)[2] = four ? bpf_htonl(0xffff) : a2_;                                       \
		(to)[3] = four ? a_ : a3_;                                                      \
	} while (0)

static __always_inline int accel_range_contains(const __u32 *a, const struct accel_visible *v)
{
	return !(((a[0] & v->mask[0]) ^ v->address[0]) | ((a[1] & v->mask[1]) ^ v->address[1]) |
		 ((a[2] & v->mask[2]) ^ v->address[2]) | ((a[3] & v->mask[3]) ^ v->address[3]));
}

static __always_inline int accel_port_is_enabled(__u32 port)
{
	__u32 word = port / 64 & 1023;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);

	return bits && *bits >> port % 64 & 1;
}

/* Returns why the configuration excludes a connection to this port of the server, or ACCEL_OK. */
static __noinline int accel_config_check(struct bpf_sock_ops *ops, __u32 port)
{
	const struct accel_config *cfg = accel_config_lookup();
	struct accel_visible *v;
	__u32 local[4], remote[4], i;

	if (accel_is_off(cfg))
		return ACCEL_SWITCHED;
	if (!accel_port_is_enabled(port))
		return ACCEL_PORT;
	if (!cfg->visibles)
		return ACCEL_OK;
	accel_ops_address(local, ops, local_ip4, local_ip6);
	accel_ops_address(remote, ops, remote_ip4, remote_ip6);
	for (i = 0; i < ACCEL_VISIBLES && i < cfg->visibles; i++) {
		__u32 at = i;

		v = bpf_map_lookup_elem(&visibles, &at);
		if (v && port >= v->first && port <= v->last &&
		    (accel_range_contains(local, v) || accel_range_contains(remote, v)))
			return ACCEL_VISIBLE;
	}
	return ACCEL_OK;
}

/* Finds the service of the socket's network namespace. With all (attached to a cgroup), sockets
 * without a service take part, too, as those of the node. */
static __always_inline int accel_service_lookup(struct bpf_sock_ops *ops, int all,
						struct accel_service *s)
{
	__u64 netns = bpf_get_netns_cookie(ops);
	const struct accel_service *found = bpf_map_lookup_elem(&members, &netns);

	*s = found ? *found : (struct accel_service){};
	return found || all;
}

static __always_inline void accel_destination_key(struct bpf_sock_ops *ops, struct accel_address *a)
{
	a->netns = bpf_get_netns_cookie(ops);
	a->port = bpf_ntohl(ops->remote_port);
	a->zero = 0;
	accel_ops_address(a->address, ops, remote_ip4, remote_ip6);
}

/* Returns why offers to the destination do not pay off, by the results of previous ones, or
 * ACCEL_OK. One of config.retry is offered nevertheless. */
static __always_inline enum accel_reason accel_destination_check(struct bpf_sock_ops *ops,
								 const struct accel_config *cfg)
{
	struct accel_address a;
	struct accel_destination *d;
	enum accel_reason why;

	if (cfg->mode == ACCEL_ALL)
		return ACCEL_OK;
	accel_destination_key(ops, &a);
	d = bpf_map_lookup_elem(&destinations, &a);
	if (!d)
		return ACCEL_OK;
	why = d->offers >= 2			      ? ACCEL_REMOTE
	      : d->turns && d->turns < cfg->min_turns ? ACCEL_SHORT
						      : ACCEL_OK;
	if (why != ACCEL_OK && !(__sync_fetch_and_add(&d->passed, 1) + 1 & cfg->retry - 1))
		return ACCEL_OK;
	return why;
}

#define ACCEL_CALLBACKS (BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTT_CB_FLAG)

/* Resets a socket that was disconnected by connect(AF_UNSPEC), whose queue and flags are still of
 * the previous connection. */
static __always_inline void accel_sock_reset(struct bpf_sock_ops *ops)
{
	__u64 cookie;

	if (!(ops->bpf_sock_ops_cb_flags & ACCEL_CALLBACKS))
		return;
	cookie = bpf_get_socket_cookie(ops);
	bpf_map_delete_elem(&sockets, &cookie);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* Handles a client that is about to connect, in its process. As connections that gain nothing pay
 * for this, it returns as early as possible. */
static __always_inline void accel_client_enrol(struct bpf_sock_ops *ops, int all)
{
	const struct accel_config *cfg = accel_config_lookup();
	__u32 port = bpf_ntohl(ops->remote_port);
	struct accel_end e = { .is_client = 1, .server = ACCEL_SERVICE_UNKNOWN };
	struct accel_service s;
	struct accel_file f;
	enum accel_reason why;
	__u32 *share;
	__u64 cookie;

	accel_sock_reset(ops);
	if (!cfg || accel_is_off(cfg) || !accel_service_lookup(ops, all, &s))
		return;
	why = accel_config_check(ops, port);
	if (why == ACCEL_OK)
		why = accel_destination_check(ops, cfg);
	share = accel_share_lookup(s.id);
	if (why == ACCEL_OK && cfg->quota && share && *share >= cfg->quota)
		why = ACCEL_QUOTA;
	if (why == ACCEL_OK) {
		f = accel_current_file();
		why = accel_executable_check(&f);
		if (why == ACCEL_UNJUDGED)
			accel_current_query(&f);
		else if (why == ACCEL_OK && accel_task_uses_uring(bpf_get_current_task()))
			why = ACCEL_URING;
	}
	if (why == ACCEL_OK) {
		e.client = s.id;
		e.netns = bpf_get_netns_cookie(ops);
		e.sk = accel_ops_sk(ops);
		cookie = bpf_get_socket_cookie(ops);
		if (!bpf_map_update_elem(&ends, &cookie, &e, BPF_NOEXIST)) {
			bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
							       BPF_SOCK_OPS_STATE_CB_FLAG);
			accel_share_take(s.id);
		} else if (!accel_end_lookup(
				   cookie)) { /* otherwise the other program of this module
						    has added it */
			why = ACCEL_FULL;
		}
	}
	if (why != ACCEL_OK)
		accel_refusal_count(s.id, ACCEL_SERVICE_UNKNOWN, why);
}

#define ACCEL_EBUSY 16

/* Adds the socket to the sockmap, so that the sk_msg program gets its messages. */
static __always_inline enum accel_reason accel_sock_add(struct bpf_sock_ops *ops,
							struct accel_end *e, __u64 cookie)
{
	long err;

	e->heard = accel_now();
	if (accel_has_unsupported_options(e->sk))
		return ACCEL_OPTION;
	err = bpf_sock_hash_update(ops, &sockets, &cookie, BPF_NOEXIST);
	if (err)
		return err == -ACCEL_EBUSY ? ACCEL_OWNED : ACCEL_FULL;
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | ACCEL_CALLBACKS);
	return ACCEL_OK;
}

static __always_inline void accel_pair_mark_ambiguous(struct accel_offer *o)
{
	struct accel_end *client = accel_end_lookup(o->client),
			 *server = accel_end_lookup(o->server);

	if (client)
		accel_end_stop(client, ACCEL_AMBIGUOUS);
	if (server)
		accel_end_stop(server, ACCEL_AMBIGUOUS);
	o->server = ~0ull; /* of no socket: a later answer is ambiguous, too */
}

/* Handles an established client: it has received the SYN-ACK, the server is not established yet. */
static __always_inline void accel_offer_create(struct bpf_sock_ops *ops)
{
	struct accel_offer o = {}, *other;
	enum accel_reason why;
	struct accel_end *e;
	__u64 cookie;

	if (!(ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_STATE_CB_FLAG))
		return;
	o.client = cookie = bpf_get_socket_cookie(ops);
	e = accel_end_lookup(cookie);
	if (!e || e->pair.client || e->pair.server || accel_is_off(accel_config_lookup()))
		return;
	e->pair.client = ops->snd_nxt;
	e->pair.server = ops->rcv_nxt;
	other = bpf_map_lookup_elem(&offers, &e->pair);
	if (other) {
		accel_pair_mark_ambiguous(other);
		why = ACCEL_AMBIGUOUS;
	} else {
		why = accel_sock_add(ops, e, cookie);
		if (why == ACCEL_OK && bpf_map_update_elem(&offers, &e->pair, &o, BPF_NOEXIST)) {
			bpf_map_delete_elem(&sockets, &cookie);
			why = ACCEL_FULL;
		}
	}
	if (why == ACCEL_OK) {
		accel_count(e->client, ACCEL_SERVICE_UNKNOWN, offered, 1);
		return;
	}
	accel_refusal_count(e->client, ACCEL_SERVICE_UNKNOWN, why);
	accel_share_release(e->client);
	bpf_map_delete_elem(&ends, &cookie);
}

/* Returns why the server must not answer this client, or ACCEL_OK. */
static __always_inline enum accel_reason accel_listener_check(struct bpf_sock_ops *ops,
							      const struct accel_end *client)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	const struct accel_listener *l, unknown = {};
	enum accel_reason why = accel_config_check(ops, ops->local_port);

	if (why != ACCEL_OK)
		return why;
	if (accel_must_be_visible(client->netns, p.netns))
		return ACCEL_POLICY;
	l = bpf_map_lookup_elem(&listeners, &p);
	why = !l || !l->file.inode ? ACCEL_UNJUDGED
	      : l->mixed	   ? ACCEL_EXECUTABLE
				   : accel_executable_check(&l->file);
	if (why != ACCEL_UNJUDGED)
		return why;
	/* It listened before the module was attached, or the query or the verdict was lost: when
	 * this connection closes, its program is learnt and queried again. */
	bpf_map_update_elem(&listeners, &p, &unknown, BPF_NOEXIST);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return ACCEL_UNJUDGED_SERVER;
}

/* Handles an established socket of a server: answers the offer of a local client, if there is
 * one. */
static __always_inline void accel_offer_answer(struct bpf_sock_ops *ops, int all)
{
	struct accel_pair pair = {.client = ops->rcv_nxt, .server = ops->snd_nxt};
	struct accel_offer *o = bpf_map_lookup_elem(&offers, &pair);
	struct accel_end e = {.pair = pair}, *client, *mine;
	struct accel_service s;
	enum accel_reason why;
	__u64 cookie;

	if (!o)
		return;
	cookie = bpf_get_socket_cookie(ops);
	if (o->server == cookie || o->client == cookie || !accel_service_lookup(ops, all, &s))
		return;
	client = accel_end_lookup(o->client);
	if (!client || client->stop)
		return;
	why = accel_listener_check(ops, client);
	if (why == ACCEL_OK && __sync_val_compare_and_swap(&o->server, 0, cookie)) {
		accel_pair_mark_ambiguous(o);
		return;
	}
	client->server = s.id;
	e.sk = accel_ops_sk(ops);
	e.netns = bpf_get_netns_cookie(ops);
	e.peer = o->client;
	e.client = client->client;
	e.server = s.id;
	if (why == ACCEL_OK && bpf_map_update_elem(&ends, &cookie, &e, BPF_NOEXIST))
		why = ACCEL_FULL;
	mine = why == ACCEL_OK ? accel_end_lookup(cookie) : 0;
	if (mine) {
		why = accel_sock_add(ops, mine, cookie);
		if (why != ACCEL_OK)
			bpf_map_delete_elem(&ends, &cookie);
	}
	if (why != ACCEL_OK) {
		accel_end_stop(client, why);
		return;
	}
	__sync_lock_test_and_set(&client->peer, cookie); /* last: the client may redirect then */
	accel_unpaired_set(0);
	accel_count(e.client, e.server, paired, 1);
}

static __always_inline int accel_file_equal(const struct accel_file *a, const struct accel_file *b)
{
	return a->inode == b->inode && a->device == b->device && a->generation == b->generation;
}

static __always_inline int accel_listener_is_alive(const struct accel_listener *l)
{
	__u64 sk = l->sk;

	return sk && accel_cookie(sk) == l->cookie &&
	       accel_get(accel_sock(sk), __sk_common.skc_state) == BPF_TCP_LISTEN;
}

/* Stores the program that listens on a port, or that several do. */
static __always_inline void accel_listener_update(const struct accel_port *p,
						  const struct accel_listener *l)
{
	struct accel_listener *known = bpf_map_lookup_elem(&listeners, p);

	if (known && known->file.inode && accel_listener_is_alive(known))
		known->mixed |= !accel_file_equal(&known->file, &l->file);
	else
		bpf_map_update_elem(&listeners, p, l, BPF_ANY);
}

/* Handles listen(2), in the process that calls it. */
static __always_inline void accel_listener_add(struct bpf_sock_ops *ops, int all)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	struct accel_listener l = {.cookie = bpf_get_socket_cookie(ops), .sk = accel_ops_sk(ops)};
	struct accel_service s;

	if (!accel_service_lookup(ops, all, &s))
		return;
	l.file = accel_current_file();
	accel_listener_update(&p, &l);
	if (accel_executable_check(&l.file) == ACCEL_UNJUDGED)
		accel_current_query(&l.file);
}

/* Handles the close of a server's connection, in its process, to learn the program of its listening
 * socket if it is unknown or without a verdict. */
static __always_inline void accel_listener_learn(struct bpf_sock_ops *ops)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	struct accel_listener *l = bpf_map_lookup_elem(&listeners, &p);
	struct accel_file f = accel_current_file();

	if (!l || (l->file.inode && !accel_file_equal(&l->file, &f)))
		return;
	l->file = f;
	if (accel_executable_check(&l->file) == ACCEL_UNJUDGED)
		accel_current_query(&l->file);
}

#endif
