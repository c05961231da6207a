/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who takes part, and how the two ends of a connection find each other. The client is examined when
 * it connects (in its process), enrols when it is established and offers its pair of sequence
 * numbers; the server answers an offer when it is established, which is always later. */
#ifndef ACCEL_PAIR_H
#define ACCEL_PAIR_H

#include "leave.h"
#include "judge.h"

/* All fields are loaded, always: otherwise the compiler merges two loads into one with a variable
 * offset. */
#define accel_ctx(field) (*(volatile __u32 *)&(field))

#define accel_address(to, ops, ip4, ip6)                                              \
	do {                                                                          \
		__u32 four = accel_ctx((ops)->family) == 2 /* AF_INET */,             \
		      a_ = accel_ctx((ops)->ip4), a0_ = accel_ctx((ops)->ip6[0]),     \
		      a1_ = accel_ctx((ops)->ip6[1]), a2_ = accel_ctx((ops)->ip6[2]), \
		      a3_ = accel_ctx((ops)->ip6[3]);                                 \
		(to)[0] = four ? 0 : a0_;                                             \
		(to)[1] = four ? 0 : a1_;                                             \
		(to)[2] = four ? bpf_htonl(0xffff) : a2_;                             \
		(to)[3] = four ? a_ : a3_;                                            \
	} while (0)

static __always_inline int accel_range_contains(const __u32 *a, const struct accel_visible *v)
{
	return !(((a[0] & v->mask[0]) ^ v->address[0]) | ((a[1] & v->mask[1]) ^ v->address[1]) |
		 ((a[2] & v->mask[2]) ^ v->address[2]) | ((a[3] & v->mask[3]) ^ v->address[3]));
}

static __always_inline int accel_port_open(__u32 port)
{
	__u32 word = port / 64 & 1023;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);

	return bits && *bits >> port % 64 & 1;
}

/* What configuration says about a connection to this port of the server. */
static __noinline int accel_permitted(struct bpf_sock_ops *ops, __u32 port)
{
	const struct accel_config *cfg = accel_config();
	struct accel_visible *v;
	__u32 local[4], remote[4], i;

	if (accel_is_off(cfg))
		return ACCEL_SWITCHED;
	if (!accel_port_open(port))
		return ACCEL_PORT;
	if (!cfg->visibles)
		return ACCEL_FINE;
	accel_address(local, ops, local_ip4, local_ip6);
	accel_address(remote, ops, remote_ip4, remote_ip6);
	for (i = 0; i < ACCEL_VISIBLES && i < cfg->visibles; i++) {
		__u32 at = i;

		v = bpf_map_lookup_elem(&visibles, &at);
		if (v && port >= v->first && port <= v->last &&
		    (accel_range_contains(local, v) || accel_range_contains(remote, v)))
			return ACCEL_VISIBLE;
	}
	return ACCEL_FINE;
}

/* The service whose namespace the socket is in. By cgroup (`all`) also sockets of no service take
 * part, as the node's. */
static __always_inline int accel_service(struct bpf_sock_ops *ops, int all, struct accel_service *s)
{
	__u64 netns = bpf_get_netns_cookie(ops);
	const struct accel_service *found = bpf_map_lookup_elem(&members, &netns);

	*s = found ? *found : (struct accel_service){};
	return found || all;
}

static __always_inline void accel_destination_of(struct bpf_sock_ops *ops, struct accel_address *a)
{
	a->netns = bpf_get_netns_cookie(ops);
	a->port = bpf_ntohl(ops->remote_port);
	a->zero = 0;
	accel_address(a->address, ops, remote_ip4, remote_ip6);
}

/* Whether offers for connections there pay off, by the results of the last ones. If not, one of
 * many is offered again. */
static __always_inline enum accel_reason accel_offer_pays_off(struct bpf_sock_ops *ops,
							      const struct accel_config *cfg)
{
	struct accel_address a;
	struct accel_destination *d;
	enum accel_reason why;

	if (cfg->mode == ACCEL_ALL)
		return ACCEL_FINE;
	accel_destination_of(ops, &a);
	d = bpf_map_lookup_elem(&destinations, &a);
	if (!d)
		return ACCEL_FINE;
	why = d->offers >= 2			      ? ACCEL_REMOTE
	      : d->turns && d->turns < cfg->min_turns ? ACCEL_SHORT
						      : ACCEL_FINE;
	if (why != ACCEL_FINE && !(__sync_fetch_and_add(&d->passed, 1) + 1 & cfg->retry - 1))
		return ACCEL_FINE;
	return why;
}

#define ACCEL_CALLBACKS (BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTT_CB_FLAG)

/* A socket that was connected before, and disconnected by connect(AF_UNSPEC): its queue and flags
 * are still of that connection. */
static __always_inline void accel_sock_forget(struct bpf_sock_ops *ops)
{
	__u64 cookie;

	if (!(ops->bpf_sock_ops_cb_flags & ACCEL_CALLBACKS))
		return;
	cookie = bpf_get_socket_cookie(ops);
	bpf_map_delete_elem(&sockets, &cookie);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_RTT_CB_FLAG);
}

/* A client is about to connect, in its own process. What this costs, connections pay that gain
 * nothing: it ends as soon as it can. */
static __always_inline void accel_connecting(struct bpf_sock_ops *ops, int all)
{
	const struct accel_config *cfg = accel_config();
	__u32 port = bpf_ntohl(ops->remote_port);
	struct accel_end e = {.is_client = 1, .server = ACCEL_NOBODY};
	struct accel_service s;
	struct accel_file f;
	enum accel_reason why;
	__u32 *share;
	__u64 cookie;

	accel_sock_forget(ops);
	if (!cfg || accel_is_off(cfg) || !accel_service(ops, all, &s))
		return;
	why = accel_permitted(ops, port);
	if (why == ACCEL_FINE)
		why = accel_offer_pays_off(ops, cfg);
	share = accel_share(s.id);
	if (why == ACCEL_FINE && cfg->quota && share && *share >= cfg->quota)
		why = ACCEL_QUOTA;
	if (why == ACCEL_FINE) {
		f = accel_current_file();
		why = accel_examine_calls(&f);
		if (why == ACCEL_UNJUDGED)
			accel_ask(&f);
		else if (why == ACCEL_FINE && accel_uses_uring(bpf_get_current_task()))
			why = ACCEL_URING;
	}
	if (why == ACCEL_FINE) {
		e.client = s.id;
		e.netns = bpf_get_netns_cookie(ops);
		e.sk = accel_ops_sk(ops);
		cookie = bpf_get_socket_cookie(ops);
		if (!bpf_map_update_elem(&ends, &cookie, &e, BPF_NOEXIST)) {
			bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
							       BPF_SOCK_OPS_STATE_CB_FLAG);
			accel_take_share(s.id);
		} else if (!accel_end(cookie)) { /* else the other program of this module was there
						    first */
			why = ACCEL_FULL;
		}
	}
	if (why != ACCEL_FINE)
		accel_refuse(s.id, ACCEL_NOBODY, why);
}

#define ACCEL_EBUSY 16

/* Takes the socket into the map where messages are seen. */
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
	return ACCEL_FINE;
}

static __always_inline void accel_pair_mark_ambiguous(struct accel_offer *o)
{
	struct accel_end *client = accel_end(o->client), *server = accel_end(o->server);

	if (client)
		accel_stop(client, ACCEL_POISONED);
	if (server)
		accel_stop(server, ACCEL_POISONED);
	o->server = ~0ull; /* no socket's: an answer from now on is too late */
}

/* The client has the server's SYN-ACK; the server does not know yet. */
static __always_inline void accel_offer(struct bpf_sock_ops *ops)
{
	struct accel_offer o = {}, *other;
	enum accel_reason why;
	struct accel_end *e;
	__u64 cookie;

	if (!(ops->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_STATE_CB_FLAG))
		return;
	o.client = cookie = bpf_get_socket_cookie(ops);
	e = accel_end(cookie);
	if (!e || e->pair.client || e->pair.server || accel_is_off(accel_config()))
		return;
	e->pair.client = ops->snd_nxt;
	e->pair.server = ops->rcv_nxt;
	other = bpf_map_lookup_elem(&offers, &e->pair);
	if (other) {
		accel_pair_mark_ambiguous(other);
		why = ACCEL_POISONED;
	} else {
		why = accel_sock_add(ops, e, cookie);
		if (why == ACCEL_FINE && bpf_map_update_elem(&offers, &e->pair, &o, BPF_NOEXIST)) {
			bpf_map_delete_elem(&sockets, &cookie);
			why = ACCEL_FULL;
		}
	}
	if (why == ACCEL_FINE) {
		accel_count(e->client, ACCEL_NOBODY, offered, 1);
		return;
	}
	accel_refuse(e->client, ACCEL_NOBODY, why);
	accel_return_share(e->client);
	bpf_map_delete_elem(&ends, &cookie);
}

/* Whether the server may answer this client. */
static __always_inline enum accel_reason accel_may_answer(struct bpf_sock_ops *ops,
							  const struct accel_end *client)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	const struct accel_listener *l, unknown = {};
	enum accel_reason why = accel_permitted(ops, ops->local_port);

	if (why != ACCEL_FINE)
		return why;
	if (accel_is_watched(client->netns, p.netns))
		return ACCEL_POLICY;
	l = bpf_map_lookup_elem(&listeners, &p);
	why = !l || !l->file.inode ? ACCEL_UNJUDGED
	      : l->mixed	   ? ACCEL_EXECUTABLE
				   : accel_examine_calls(&l->file);
	if (why != ACCEL_UNJUDGED)
		return why;
	/* It listened before we came, or the question was lost or its answer forgotten: when this
	 * connection closes, it shows whose it is, and can be asked again. */
	bpf_map_update_elem(&listeners, &p, &unknown, BPF_NOEXIST);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
	return ACCEL_UNJUDGED_SERVER;
}

/* A server's socket is established: does a client here say that it is the other end? */
static __always_inline void accel_answer(struct bpf_sock_ops *ops, int all)
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
	if (o->server == cookie || o->client == cookie || !accel_service(ops, all, &s))
		return;
	client = accel_end(o->client);
	if (!client || client->stop)
		return;
	why = accel_may_answer(ops, client);
	if (why == ACCEL_FINE && __sync_val_compare_and_swap(&o->server, 0, cookie)) {
		accel_pair_mark_ambiguous(o);
		return;
	}
	client->server = s.id;
	e.sk = accel_ops_sk(ops);
	e.netns = bpf_get_netns_cookie(ops);
	e.peer = o->client;
	e.client = client->client;
	e.server = s.id;
	if (why == ACCEL_FINE && bpf_map_update_elem(&ends, &cookie, &e, BPF_NOEXIST))
		why = ACCEL_FULL;
	mine = why == ACCEL_FINE ? accel_end(cookie) : 0;
	if (mine) {
		why = accel_sock_add(ops, mine, cookie);
		if (why != ACCEL_FINE)
			bpf_map_delete_elem(&ends, &cookie);
	}
	if (why != ACCEL_FINE) {
		accel_stop(client, why);
		return;
	}
	__sync_lock_test_and_set(&client->peer, cookie); /* last: with it the client may redirect */
	accel_set_unpaired(0);
	accel_count(e.client, e.server, paired, 1);
}

static __always_inline int accel_same_file(const struct accel_file *a, const struct accel_file *b)
{
	return a->inode == b->inode && a->device == b->device && a->generation == b->generation;
}

static __always_inline int accel_still_listens(const struct accel_listener *l)
{
	__u64 sk = l->sk;

	return sk && accel_cookie(sk) == l->cookie &&
	       accel_get(accel_sock(sk), __sk_common.skc_state) == BPF_TCP_LISTEN;
}

/* A program listens: it is the one that is asked about, or one of several. */
static __always_inline void accel_note_listener(const struct accel_port *p,
						const struct accel_listener *l)
{
	struct accel_listener *known = bpf_map_lookup_elem(&listeners, p);

	if (known && known->file.inode && accel_still_listens(known))
		known->mixed |= !accel_same_file(&known->file, &l->file);
	else
		bpf_map_update_elem(&listeners, p, l, BPF_ANY);
}

/* A socket begins to listen, in its process. */
static __always_inline void accel_listening(struct bpf_sock_ops *ops, int all)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	struct accel_listener l = {.cookie = bpf_get_socket_cookie(ops), .sk = accel_ops_sk(ops)};
	struct accel_service s;

	if (!accel_service(ops, all, &s))
		return;
	l.file = accel_current_file();
	accel_note_listener(&p, &l);
	if (accel_examine_calls(&l.file) == ACCEL_UNJUDGED)
		accel_ask(&l.file);
}

/* A server closes a connection, in its process, whose listening socket was there before we were, or
 * whose program is not judged. */
static __always_inline void accel_learn_listener(struct bpf_sock_ops *ops)
{
	struct accel_port p = {.netns = bpf_get_netns_cookie(ops), .port = ops->local_port};
	struct accel_listener *l = bpf_map_lookup_elem(&listeners, &p);
	struct accel_file f = accel_current_file();

	if (!l || (l->file.inode && !accel_same_file(&l->file, &f)))
		return;
	l->file = f;
	if (accel_examine_calls(&l->file) == ACCEL_UNJUDGED)
		accel_ask(&l->file);
}

#endif
