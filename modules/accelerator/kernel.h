/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Kernel structures (CO-RE: only names matter, offsets are those of the running kernel), and access
 * to them. Sockets are read by address without a reference: memory of TCP sockets is reused for TCP
 * sockets only within an RCU section (SLAB_TYPESAFE_BY_RCU), loads are fault-safe, and an unchanged
 * cookie before and after proves that it was the same socket. */
#ifndef ACCEL_KERNEL_H
#define ACCEL_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next, *prev;
};

typedef struct {
	int counter;
} atomic_t;

typedef struct {
	__s64 counter;
} atomic64_t;

typedef struct {
	atomic_t refs;
} refcount_t;

struct net {
	__u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	unsigned short skc_num;
	possible_net_t skc_net;
	unsigned char skc_state;
	unsigned long skc_flags;
	atomic64_t skc_cookie;
};

typedef struct {
	int owned;
} socket_lock_t;

struct wait_queue_entry {
	unsigned int flags;
	void *private;
	struct list_head entry;
};

struct wait_queue_head {
	struct list_head head;
};

typedef struct wait_queue_head wait_queue_head_t;

struct socket_wq {
	wait_queue_head_t wait;
};

struct sock {
	struct sock_common __sk_common;
	socket_lock_t sk_lock;
	struct socket_wq *sk_wq;
	void *sk_user_data;
	__u16 sk_type, sk_protocol;
	int sk_rcvlowat;
	int sk_peek_off;
	unsigned int sk_ll_usec;
	__u32 sk_tsflags; /* 16 bits on Linux 6.1 */
	__u8 sk_shutdown;
	__u8 sk_userlocks : 4;
	int sk_rcvbuf;
};

#define ACCEL_RCVBUF_LOCK 2 /* SOCK_RCVBUF_LOCK in sk_userlocks: the program has set SO_RCVBUF */

enum sock_flags {
	SOCK_RCVTSTAMP = 8,
	SOCK_ZEROCOPY = 23,
};

struct inet_connection_sock {
	const struct tcp_ulp_ops *icsk_ulp_ops;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 copied_seq, write_seq;
	__u8 recvmsg_inq : 1;
};

struct socket {
	struct sock *sk;
};

struct sk_psock {
	struct list_head ingress_msg;
	refcount_t refcnt;
};

struct sk_msg {
	struct sock *sk;
};

struct bpf_sock_ops_kern {
	struct sock *sk;
};

struct super_block {
	unsigned int s_dev;
	unsigned long s_magic;
};

typedef struct {
	__u32 val;
} kuid_t;

struct inode {
	unsigned short i_mode;
	kuid_t i_uid;
	struct super_block *i_sb;
	unsigned long i_ino;
	__u32 i_generation;
};

/* mtime: before Linux 6.7, from 6.7, and from 6.11. */
struct timespec64 {
	__s64 tv_sec;
	long tv_nsec;
};

struct inode___before_6_7 {
	struct timespec64 i_mtime;
};

struct inode___before_6_11 {
	struct timespec64 __i_mtime;
};

struct inode___6_11 {
	__s64 i_mtime_sec;
	__u32 i_mtime_nsec;
};

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	struct inode *d_inode;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mnt_namespace {
	__u64 seq; /* unique, never reused */
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
	struct mnt_namespace *mnt_ns;
	int mnt_id;
};

struct mount___6_8 {
	__u64 mnt_id_unique;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
	struct path f_path;
	void *private_data;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct mm_struct {
	struct file *exe_file;
};

struct fs_struct {
	struct path root;
};

struct user_namespace {
	int level; /* 0: the initial one */
};

struct cred {
	struct user_namespace *user_ns;
};

/* Registers of a thread at its entry into the kernel. */
struct pt_regs {
	unsigned long di, dx, r10, orig_ax, cs; /* x86-64 */
	__u64 regs[31];			    /* arm64 */
	__s32 syscallno;
};

struct io_wq_work {
	unsigned int flags;
};

struct io_worker {
	struct io_wq_work *cur_work;
};

struct io_kiocb {
	__u8 opcode;
	struct io_wq_work work;
};

struct task_struct {
	void *stack;
	unsigned int flags;
	struct list_head tasks;
	const struct cred *real_cred;
	struct fs_struct *fs;
	struct files_struct *files;
	void *io_uring;
	void *worker_private; /* io_uring workers: struct io_worker */
	struct mm_struct *mm;
	int pid, tgid;
	struct task_struct *group_leader;
	__u64 self_exec_id;
	char comm[16];
};

#pragma clang attribute pop

/* Since Linux 6.2, bpf_rdonly_cast gives an address a type. Direct loads then take a tenth of the
 * time of bpf_probe_read_kernel. */
void *bpf_rdonly_cast(const void *address, __u32 type) __ksym __weak;
#define ACCEL_TYPED (bpf_rdonly_cast != 0)

/* from and address have to be variables: otherwise loads in these expressions would be treated as
 * loads of kernel memory, too. */

#define accel_cast(type, address)                                                                \
	(ACCEL_TYPED ? (type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(type)) \
		     : (type *)(address))
#define accel_get(from, member) \
	(ACCEL_TYPED ? (from)->member : BPF_CORE_READ(from, member))
#define accel_get_bits(from, member) /* whose size differs between kernels */ \
	(ACCEL_TYPED ? BPF_CORE_READ_BITFIELD(from, member)                   \
		     : BPF_CORE_READ_BITFIELD_PROBED(from, member))

#define accel_sock(address) accel_cast(struct sock, address)

/* Time in units of 2^20 ns, never 0. accel_now_coarse is faster, up to 10 ms late, and not
 * available in syscall programs. */
#define accel_now() ((__u32)(bpf_ktime_get_ns() >> 20) | 1)
#define accel_now_coarse() ((__u32)(bpf_ktime_get_coarse_ns() >> 20) | 1)

/* A read barrier. x86 does not reorder loads; elsewhere an atomic operation that returns a value is
 * a full barrier (Documentation/atomic_t.txt). */
static __always_inline void accel_barrier(void)
{
	struct pt_regs *regs = 0;
	__u64 word = 0;

	asm volatile("" ::"r"(&word) : "memory");
	if (!bpf_core_field_exists(regs->orig_ax))
		__sync_lock_test_and_set(&word, 1);
	asm volatile("" ::: "memory");
}

/* The socket that a program runs for: at run time, the context is the kernel's structure. */
#define accel_msg_sk(msg) ((__u64)accel_get(accel_cast(struct sk_msg, msg), sk))
#define accel_ops_sk(ops) ((__u64)accel_get(accel_cast(struct bpf_sock_ops_kern, ops), sk))

static __always_inline __u64 accel_cookie(__u64 sk)
{
	return accel_get(accel_sock(sk), __sk_common.skc_cookie.counter);
}

static __always_inline __u64 accel_psock(__u64 sk)
{
	return (__u64)accel_get(accel_sock(sk), sk_user_data) & ~7ull; /* SK_USER_DATA_PTRMASK */
}

/* Returns whether all redirected messages have been read. */
static __always_inline int accel_queue_empty(__u64 sk)
{
	__u64 psock = accel_psock(sk),
	      head = psock + bpf_core_field_offset(struct sk_psock, ingress_msg);

	return !psock ||
	       (__u64)accel_get(accel_cast(struct sk_psock, psock), ingress_msg.next) == head;
}

static __always_inline __u32 accel_references(__u64 sk)
{
	return accel_get(accel_cast(struct sk_psock, accel_psock(sk)), refcnt.refs.counter);
}

/* Returns whether the socket has options that redirected messages do not support, on either side,
 * or busy polling, which would not find them. */
static __always_inline int accel_has_unsupported_options(__u64 address)
{
	struct tcp_sock *tp = accel_cast(struct tcp_sock, address);
	struct sock *sk = accel_sock(address);
	__u64 flags = 1ull << bpf_core_enum_value(enum sock_flags, SOCK_RCVTSTAMP) |
		      1ull << bpf_core_enum_value(enum sock_flags, SOCK_ZEROCOPY);

	return (accel_get(sk, __sk_common.skc_flags) & flags) || accel_get_bits(sk, sk_tsflags) ||
	       accel_get(sk, sk_rcvlowat) > 1 ||
	       accel_get(sk, sk_peek_off) >= 0 /* TCP has it since Linux 6.9 */ ||
	       accel_get(tp, inet_conn.icsk_ulp_ops) || accel_get_bits(tp, recvmsg_inq) ||
	       (bpf_core_field_exists(sk->sk_ll_usec) && accel_get(sk, sk_ll_usec));
}

/* Returns the size of the receive buffer if the program has set SO_RCVBUF, otherwise ~0: TCP
 * adjusts those buffers itself. */
static __always_inline __u32 accel_receive_buffer(__u64 address)
{
	struct sock *sk = accel_sock(address);

	return accel_get_bits(sk, sk_userlocks) & ACCEL_RCVBUF_LOCK ? accel_get(sk, sk_rcvbuf)
								     : ~0u;
}

static __always_inline int accel_sock_is_open(__u64 address)
{
	struct sock *sk = accel_sock(address);

	return accel_get(sk, __sk_common.skc_state) == BPF_TCP_ESTABLISHED &&
	       !accel_get_bits(sk, sk_shutdown);
}

#endif
