/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The interface between data plane, control plane and tests: maps, their layouts, and the reasons
 * why a connection stays on plain TCP. Host byte order unless noted; times in ns of
 * CLOCK_MONOTONIC. layout.go mirrors it, a test compares both.
 *
 *	config		ARRAY, 1	accel_config	written by the control plane; mode ACCEL_OFF
 *							disables everything without loss
 *	members		HASH		accel_service	by netns cookie: services that take part
 *	ports		ARRAY, 1024	u64		bit port % 64 of element port / 64: the
 *							server's port may be accelerated
 *	visibles	ARRAY		accel_visible	connections that must stay visible use plain
 *							TCP; config.visibles of them
 *	executables	HASH		accel_executable	by accel_file: verdicts on programs
 *	listeners	LRU_HASH	accel_listener	by accel_port: the program of a listening
 *							socket
 *	destinations	LRU_HASH	accel_destination	by accel_address: whether offers
 *								to it are answered, and how long
 *								its connections last
 *	offers		HASH		accel_offer	by accel_pair: clients that a server may
 *							answer
 *	ends		HASH		accel_end	by socket cookie: enrolled sockets
 *	sockets		SOCKHASH	u64		by socket cookie; the sk_msg program is
 *							attached to it
 *	counts		HASH		accel_counts	by accel_route
 *	none		ARRAY, 1	accel_counts	zeroes, as it exceeds the stack limit
 *	unjudged	RINGBUF		accel_event	programs that need a verdict
 *	off		ARRAY, 1	u32		1: about to be detached: no socket enrols,
 *							and nothing is redirected
 *	shares		HASH		u32		by service id: its clients in `ends`
 *	drained		HASH		u8		by socket cookie: the results of `drain` and
 *							`age`
 *	guarded		ARRAY, 1	u32		2: requested by the agent. 1: answer: the
 *							kernel calls `guard`, so that splice(2)
 *							fails. 0 is never changed
 *
 * Detaching: set off, then run the syscall program `drain` (no context) until it returns 0. It adds
 * to `drained` the sockets that can be removed, without a byte in any queue; user space deletes
 * these from `sockets`. It returns the number of those that cannot be removed yet.
 *
 * Idle connections: `age`, which is run every second, adds their sockets to `drained` as well.
 * */
#ifndef ACCEL_LAYOUT_H
#define ACCEL_LAYOUT_H

#include <linux/types.h>

/* max_entries as compiled; twice for ends and sockets. The control plane may change them at load */
#define ACCEL_CONNECTIONS 65536
#define ACCEL_DRAINED	      8192 /* per run; the next run finds more */
#define ACCEL_VISIBLES	  32
#define ACCEL_SERVICE_UNKNOWN 0xffffffff /* the service of the other end is unknown */

enum accel_mode {
	ACCEL_OFF = 0, /* no socket enrols, everything uses plain TCP */
	ACCEL_ADAPTIVE = 1,
	/* the published design: enrol all sockets, redirect whenever the byte order permits */
	ACCEL_ALL = 2,
};

struct accel_config {
	__u32 mode;
	__u32 visibles; /* number of elements of that map in use */
	/* turns of an end before it redirects: how often the peer sent something before it. 2: the
	 * first two requests and the first reply use TCP, so that both TCPs have sent data and
	 * delay their ACKs if the connection is one-way later */
	__u32 warm;
	/* an end that has sent more than this without an answer continues on TCP ... */
	__u32 pass_messages;
	__u32 pass_bytes;
	__u32 leave_messages; /* ... and with more than this the connection is removed for good */
	__u32 leave_bytes;
	/* bytes that may wait in the receiver's queue; beyond, TCP is used, which has flow
	 * control */
	__u32 backlog;
	/* minimum of the average of turns, times 16, of a destination: below, its connections do
	 * not enrol ... */
	__u32 min_turns;
	/* ... except one of this many; likewise if the other end was not found. A power of two */
	__u32 retry;
	/* enrolled connections that the clients of a service may have at a time; not for the node
	 * itself. 0: unlimited */
	__u32 quota;
	/* time without a message after which a pair is removed, as accel_now. 0: never */
	__u32 idle;
};

/* accel_service.flags */
/* only connections within its namespace; others pass modules that must see them */
#define ACCEL_WITHIN   (1 << 0)
/* set by the data plane: programs that were listening there have been searched */
#define ACCEL_SEARCHED (1 << 1)

struct accel_service {
	__u32 id; /* assigned by the control plane; 0: the node itself (sockets of cgroups) */
	__u32 flags;
};

/* first <= the server's port <= last and (server's or client's address & mask) == address; IPv4 as
 * ::ffff:a.b.c.d */
struct accel_visible {
	__u32 address[4], mask[4]; /* network byte order */
	__u16 first, last;
	__u32 zero;
};

/* Identity of an executable file at its path. As inode numbers are reused, generation combines the
 * inode's generation, its mtime, the mount and, in a chroot, the root directory. */
struct accel_file {
	__u64 inode;
	__u32 device; /* dev_t of the kernel: major << 20 | minor */
	__u32 generation;
};

enum accel_verdict {
	ACCEL_ASKED = 1, /* the event was sent; no verdict yet */
	ACCEL_SAFE = 2,
	ACCEL_UNSAFE = 3, /* not known to be safe, or excluded by configuration */
	ACCEL_INCOMPATIBLE =
		4, /* did what redirected sockets do not support: accel_executable.reason */
	/* safe, and may block in recv, which then returns EAGAIN after a signal, SIGSTOP, the
	 * freezer or a reset */
	ACCEL_ALLOWED = 5,
};

struct accel_executable {
	__u32 verdict;
	__u32 reason; /* enum accel_reason, for ACCEL_INCOMPATIBLE */
	__u64 since;
	/* connections on which it blocked in recv: many programs do so on one of them, when they
	 * start */
	__u32 blocked;
	__u32 zero;
};

struct accel_port {
	__u64 netns; /* cookie */
	__u32 port;
	__u32 zero;
};

struct accel_listener {
	/* inode 0: it listened before the module was attached; its program is learnt when an
	 * accepted connection closes */
	struct accel_file file;
	__u64 sk, cookie; /* of the first listening socket */
	__u32 mixed;	  /* several programs listen on the port, on different addresses: TCP */
	__u32 zero;
};

struct accel_address {
	__u64 netns;	   /* of the client */
	__u32 address[4];  /* network byte order, IPv4 as ::ffff:a.b.c.d */
	__u32 port;
	__u32 zero;
};

struct accel_destination {
	__u32 offers; /* unanswered, in a row */
	__u32 turns;  /* exponential moving average over connections, times 16; 0: none yet */
	__u32 passed; /* connections that did not enrol since the last one that did */
	__u32 zero;
};

/* Identity of a connection that is the same for both ends, also through NAT: the first sequence
 * numbers after the SYNs. */
struct accel_pair {
	__u32 client, server;
};

struct accel_offer {
	__u64 client; /* cookie */
	/* cookie of the socket that answered; 0: none yet. A third socket makes the pair
	 * ambiguous */
	__u64 server;
};

/* An enrolled socket; two for each connection. Times are as accel_now: in units of 2^20 ns, about 1
 * ms; they wrap after 52 days.
 *
 * Writers: fields marked *own* are written under the lock of this socket (in the sk_msg program, or
 * in callbacks of TCP), *any* by any CPU, atomically. With key and the kernel's 56 bytes an element
 * has to fit into 192 bytes. */
struct accel_end {
	/* address of struct sock, for reading; valid while its cookie is the key of this element */
	__u64 sk;
	__u64 peer;	   /* cookie of the other end; 0: not found yet */
	__u64 netns;	   /* cookie */
	struct accel_pair pair;
	__u32 client, server; /* service ids */
	__u32 stop; /* any: enum accel_reason why it uses TCP from now on; 0: it does not */
	__u32 out;  /* any: 1: removed from `sockets`, permanently */
	__u8 is_client;
	/* own: stopped, and none of its redirected messages is in flight */
	__u8 quiet;
	__u8 plain; /* any: 1: the peer has closed and never redirected anything */
	__u8 zero;
	__u32 messages; /* own: sent, redirected or by TCP */
	__u32 seen;	/* own: messages of the peer at the time of its last own one */
	/* own: messages since the peer's last one; how often the peer sent before this end did */
	__u32 run_messages, turns;
	__u32 queued; /* own: bytes redirected since the receiver's queue was last empty */
	__u64 run_bytes;
	__u64 redirects;       /* any: redirected messages */
	__u64 uncounted_bytes; /* own: redirected bytes that are not in `counts` yet */
	__u32 uncounted;       /* own: likewise messages */
	__u32 last;	       /* own: time of the last redirected message; 0: none */
	__u32 heard;	  /* own: time of the last message */
	/* own: process that was checked last, and its self_exec_id */
	__u32 process, executed;
	__u32 written; /* own: write_seq at the last redirected message: unchanged if nothing was
			* sent by TCP since */
};

/* Why a connection uses plain TCP. The control plane has a name for each. */
enum accel_reason {
	ACCEL_OK = 0,
	ACCEL_PORT,	  /* configuration: the port is not accelerated */
	ACCEL_VISIBLE,	  /* configuration: it must stay visible */
	ACCEL_POLICY,	  /* a module of one service must see it */
	ACCEL_UNJUDGED,	  /* no verdict on the executable yet */
	ACCEL_EXECUTABLE, /* the executable is excluded */
	ACCEL_SHORT,	  /* connections to the destination are too short to gain */
	ACCEL_REMOTE,	  /* the other end is remote, or not a service that takes part */
	ACCEL_FULL,	  /* a map is full */
	ACCEL_AMBIGUOUS,  /* the pair of sequence numbers is not unique */
	/* SO_ZEROCOPY, SO_TIMESTAMP..., TCP_INQ, TCP_ULP, busy polling, SO_RCVLOWAT, SO_PEEK_OFF */
	ACCEL_OPTION,
	ACCEL_WAITALL, /* recv with MSG_WAITALL */
	ACCEL_URGENT,  /* MSG_OOB */
	/* one thread blocked in recv while another sends: shutdown would wake it with EAGAIN */
	ACCEL_THREADS,
	ACCEL_STREAM,	/* one end sends without waiting for answers */
	ACCEL_CLOSED,	/* shutdown, close or reset of either side */
	ACCEL_SWITCHED, /* mode is ACCEL_OFF, or the module is being detached */
	ACCEL_BLOCKING, /* blocks in recv instead of poll or epoll */
	ACCEL_OWNED,	/* the socket is in a sockmap of another program */
	ACCEL_QUOTA,	/* the client's service has reached accel_config.quota */
	/* the program uses io_uring, which does not receive redirected messages */
	ACCEL_URING,
	ACCEL_UNJUDGED_SERVER, /* as ACCEL_UNJUDGED, of the server */
	ACCEL_IDLE,	       /* no message for accel_config.idle */
	ACCEL_REASONS,
};

#define ACCEL_NOTE_PLAIN 1 /* note for traces: enum accel_reason why the connection uses TCP */

struct accel_route {
	__u32 client, server; /* service ids, or ACCEL_SERVICE_UNKNOWN */
};

struct accel_counts {
	__u64 offered;	   /* connections whose client enrolled */
	__u64 paired;	   /* of these: whose server enrolled as well */
	__u64 accelerated; /* of these: with redirected messages */
	__u64 left;	   /* of these: removed from the map before they closed */
	__u64 messages, bytes; /* redirected */
	__u64 refused[ACCEL_REASONS]; /* not paired, or stopped later, by reason */
};

#define ACCEL_NAMES 16 /* components of a path */
#define ACCEL_NAME  64

/* accel_event.flags */
#define ACCEL_CHANGEABLE \
	(1 << 0) /* users other than root may change the file or a parent directory */
#define ACCEL_TRUNCATED (1 << 1) /* the path has more components, or longer ones */

/* A program without a verdict that listens, connects, or sends. */
struct accel_event {
	struct accel_file file;
	__u32 pid; /* in the initial pid namespace */
	__u32 flags;
	char comm[16];
	/* the path below the root directory of the process, last component first */
	char names[ACCEL_NAMES][ACCEL_NAME];
};

#endif
