/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the data plane of the accelerator, its control plane and tests share: maps, their layouts,
 * and the reasons why a connection stays with TCP. Host byte order but where said; times in ns of
 * CLOCK_MONOTONIC. layout.go mirrors it, a test compares both.
 *
 *	config		ARRAY, 1	accel_config	written by the control plane; mode ACCEL_OFF
 *							switches all off, losing nothing
 *	members		HASH		accel_service	by netns cookie: who may
 *	ports		ARRAY, 1024	u64		bit port % 64 of element port / 64: the
 *							server's port may be accelerated
 *	visibles	ARRAY		accel_visible	connections that must stay visible use plain
 *							TCP; config.visibles of them
 *	executables	HASH		accel_executable	by accel_file: what the control
 *								plane thinks of a program
 *	listeners	LRU_HASH	accel_listener	by accel_port: whose listening socket it is.
 *							The control plane may add those that
 *							were there before
 *	destinations	LRU_HASH	accel_destination	by accel_address: whether offers
 *								there are answered, and how long
 *							connections last
 *	offers		HASH		accel_offer	by accel_pair: clients that a server may
 *							answer
 *	ends		HASH		accel_end	by socket cookie: the sockets that take part
 *	sockets		SOCKHASH	u64		by socket cookie; the sk_msg program is on
 *							it
 *	counts		HASH		accel_counts	by accel_route
 *	none		ARRAY, 1	accel_counts	zeroes, which do not fit on a stack
 *	unjudged	RINGBUF		accel_event	programs without a verdict
 *	off		ARRAY, 1	u32		1: about to be detached. No socket enrols
 *							any more, and nothing is redirected
 *	shares		HASH		u32		by number of a service: clients that it has
 *							in `ends`
 *	drained		HASH		u8		by socket cookie: what `drain` and `age`
 *							have found
 *	guarded		ARRAY, 1	u32		1: the kernel calls `guard`, so that
 *							splice(2) fails. 2: the agent asks. What is
 *							0 stays so
 *
 * Leaving: set off, then run the syscall program `drain` (no context) until it returns 0. It puts
 * into `drained` the sockets that can go, without a byte in any queue: user space deletes these
 * from `sockets`. What it returns is the number of those that cannot go yet.
 *
 * Idle connections: `age`, run every second, puts their sockets into `drained` as well.
 */
#ifndef ACCEL_LAYOUT_H
#define ACCEL_LAYOUT_H

#include <linux/types.h>

/* max_entries as compiled; twice for ends and sockets. The control plane may set them at load */
#define ACCEL_CONNECTIONS 65536
#define ACCEL_DRAINED	  8192 /* found at once; the next run finds others */
#define ACCEL_VISIBLES	  32
#define ACCEL_NOBODY	  0xffffffff /* the other service is not known */

enum accel_mode {
	ACCEL_OFF = 0,	    /* no socket enrols, everything uses plain TCP */
	ACCEL_ADAPTIVE = 1,
	/* the published design: enrol everything, redirect everything that order permits */
	ACCEL_ALL = 2,
};

struct accel_config {
	__u32 mode;
	__u32 visibles;		/* elements of that map that count */
	/* a side redirects what it sends when the other has answered, or asked, this many times. 2:
	 * the first two requests and the first reply go by TCP, so that each TCP has sent an
	 * answer, and delays its acknowledgements when the connection is one-way later */
	__u32 warm;
	/* a side that has sent more than this without an answer continues by TCP ... */
	__u32 pass_messages;
	__u32 pass_bytes;
	__u32 leave_messages;	/* ... and with more than this the connection leaves permanently */
	__u32 leave_bytes;
	/* bytes that may wait in the receiver's queue; the next goes by TCP, which can push back */
	__u32 backlog;
	/* average of turns times 16 of a destination's connections; below, they do not enrol ... */
	__u32 min_turns;
	/* ... but for one of this many; as well where the other end was not found. A power of
	 * two */
	__u32 retry;
	/* connections that one service's clients may have at a time, but for the node itself. 0:
	 * any number */
	__u32 quota;
	/* time without a message after which a pair leaves; see accel_now. 0: never */
	__u32 idle;
};

/* accel_service.flags */
/* only connections that stay in the namespace; others pass modules that must see them */
#define ACCEL_WITHIN   (1 << 0)
/* the data plane's: programs that have listened there before are known */
#define ACCEL_SEARCHED (1 << 1)

struct accel_service {
	__u32 id;    /* the control plane's number; 0: the node itself (sockets by cgroup) */
	__u32 flags;
};

/* first <= the server's port <= last and (server's or client's address & mask) == address; IPv4 as
 * ::ffff:a.b.c.d */
struct accel_visible {
	__u32 address[4], mask[4]; /* network byte order */
	__u16 first, last;
	__u32 zero;
};

/* An executable file on a mount, by which its path is known. Kept together with its generation,
 * since inode numbers come again, with a number for its contents, and with those of the mount and,
 * in a chroot, of the root directory. */
struct accel_file {
	__u64 inode;
	__u32 device;	  /* as the kernel has it: major << 20 | minor; majors end at 511 */
	__u32 generation;
};

enum accel_verdict {
	ACCEL_ASKED = 1,  /* by an event; no answer yet */
	ACCEL_SAFE = 2,
	ACCEL_UNSAFE = 3, /* not known to be safe, or by configuration */
	ACCEL_CAUGHT = 4, /* seen doing what redirected sockets cannot: accel_executable.reason */
	/* safe, and may block in recv. It then sees EAGAIN when a signal, SIGSTOP, the freezer or a
	 * reset comes */
	ACCEL_ALLOWED = 5,
};

struct accel_executable {
	__u32 verdict;
	__u32 reason; /* enum accel_reason, of ACCEL_CAUGHT */
	__u64 since;
	/* connections on which it was seen to block in recv: many programs do so on one, while they
	 * begin */
	__u32 blocked;
	__u32 zero;
};

struct accel_port {
	__u64 netns; /* cookie */
	__u32 port;
	__u32 zero;
};

struct accel_listener {
	/* inode 0: it listened before we came; whose it is shows when an accepted connection
	 * closes */
	struct accel_file file;
	__u64 sk, cookie;	/* of the first socket that listened there */
	__u32 mixed;		/* different programs listen on it, on different addresses: plain */
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
	__u32 turns;  /* exponential average over connections, times 16; 0: not known yet */
	__u32 passed; /* connections that did not enrol since the last that did */
	__u32 zero;
};

/* A connection by what both ends see of it, whatever lies between: the first sequence numbers
 * behind the SYNs. */
struct accel_pair {
	__u32 client, server;
};

struct accel_offer {
	__u64 client; /* cookie */
	/* cookie of the socket that answered, 0: none yet. A third makes the pair plain */
	__u64 server;
};

/* Times of ends, as accel_now returns them: in 2^20 ns, about a ms. They wrap after 52 days.
 *
 * One socket. Who is written by whom matters: *own* under this socket's lock (in the sk_msg
 * program, or while it is out of the map for TCP's callbacks), *any* atomically. There are two for
 * each connection: with key and the kernel's own 56 bytes they are to fit into 192. */
struct accel_end {
	/* address of struct sock, for reading; valid as long as its cookie is what we think */
	__u64 sk;
	__u64 peer;	   /* cookie, 0: not found yet */
	__u64 netns;	   /* cookie */
	struct accel_pair pair;
	__u32 client, server; /* service ids */
	__u32 stop;	  /* any: enum accel_reason: TCP from now on */
	__u32 out;	  /* any: 1: of `sockets`, permanently */
	__u8 is_client;
	/* own: stopped, and none of this end's redirected messages is under way */
	__u8 quiet;
	__u8 plain; /* any: 1: the peer has closed, and has redirected nothing */
	__u8 zero;
	__u32 messages;	  /* own: sent, by whatever way */
	__u32 seen;	  /* own: messages of the peer at the last one of ours */
	/* own: since the peer's last; times that the peer had sent something before we did */
	__u32 run_messages, turns;
	__u32 queued;	  /* own: bytes redirected since the receiver's queue was last seen empty */
	__u64 run_bytes;
	__u64 redirects;  /* any: messages */
	__u64 uncounted_bytes; /* own: redirected, but not in counts yet; */
	__u32 uncounted;  /* own: as well messages */
	__u32 last;	  /* own: time of the last redirect, 0: none */
	__u32 heard;	  /* own: time of the last message */
	/* own: that was examined last, and how often it had executed a file */
	__u32 process, executed;
	__u32 written; /* own: write_seq at the last redirect: no byte went by TCP since, if it is
			* still the same */
};

/* Why a connection is plain. The control plane has a word for each. */
enum accel_reason {
	ACCEL_FINE = 0,
	ACCEL_PORT,	   /* configuration: port, */
	ACCEL_VISIBLE,	   /* visible, */
	ACCEL_POLICY,	   /* a module of one service must see it */
	ACCEL_UNJUDGED,	   /* executable: not judged yet */
	ACCEL_EXECUTABLE,  /* executable: kept out */
	ACCEL_SHORT,	   /* connections there are too short to gain */
	ACCEL_REMOTE,	   /* the other end is not here, or not a service that takes part */
	ACCEL_FULL,	   /* a table */
	ACCEL_POISONED,	   /* the pair is not unique */
	/* SO_ZEROCOPY, SO_TIMESTAMP..., TCP_INQ, TCP_ULP, busy polling, SO_RCVLOWAT, SO_PEEK_OFF */
	ACCEL_OPTION,
	ACCEL_WAITALL,	   /* recv with MSG_WAITALL */
	ACCEL_URGENT,	   /* MSG_OOB */
	/* one thread blocked in recv while another sends: shutdown would wake it with EAGAIN */
	ACCEL_THREADS,
	ACCEL_STREAM,	   /* sent on without waiting */
	ACCEL_CLOSED,	   /* shutdown, close or reset of either side */
	ACCEL_SWITCHED,	   /* mode off */
	ACCEL_BLOCKING,	   /* blocks in recv, rather than in poll or epoll */
	ACCEL_OWNED,	   /* another program has the socket in a map of its own */
	ACCEL_QUOTA,	   /* the client's service has its share of the table */
	/* the program uses io_uring, whose receives do not see what was redirected */
	ACCEL_URING,
	ACCEL_UNJUDGED_SERVER, /* as ACCEL_UNJUDGED, which is the client's */
	ACCEL_IDLE,	   /* silent for accel_config.idle */
	ACCEL_REASONS,
};

#define ACCEL_NOTE_PLAIN 1 /* of a message: why its connection stays with TCP, enum accel_reason */

struct accel_route {
	__u32 client, server; /* service ids, or ACCEL_NOBODY */
};

struct accel_counts {
	__u64 offered;	   /* connections whose client enrolled */
	__u64 paired;	   /* whose server did as well */
	__u64 accelerated; /* that redirected anything */
	__u64 left;	   /* removed from the map permanently before they closed */
	__u64 messages, bytes; /* redirected */
	__u64 refused[ACCEL_REASONS]; /* before pairing, or stopped after it, by reason */
};

#define ACCEL_NAMES 16 /* of a path */
#define ACCEL_NAME  64

/* accel_event.flags */
#define ACCEL_CHANGEABLE (1 << 0) /* by others than root: the file, or a directory above it */
#define ACCEL_TRUNCATED	 (1 << 1) /* the path has more names, or longer ones */

/* A program that listens, connects, or sends on a socket of another process. */
struct accel_event {
	struct accel_file file;
	__u32 pid; /* in the first pid namespace */
	__u32 flags;
	char comm[16];
	/* the path below the root directory of the process, the file's own name first */
	char names[ACCEL_NAMES][ACCEL_NAME];
};

#endif
