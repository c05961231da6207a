/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* splice(2) from a socket does not return redirected messages, which are in another queue. A
 * program on the LSM hook file_permission, which the kernel calls for read, splice and sendfile,
 * makes it fail with EINVAL, the error of files that do not support splice: Go's io.Copy and
 * HAProxy then fall back to read and write. They do so only if no splice on that socket has
 * succeeded before, so it fails from the first call on, until the socket is removed, or has stopped
 * with nothing redirected to it: then it is a plain TCP socket, permanently. */
#ifndef ACCEL_GUARD_H
#define ACCEL_GUARD_H

#include "call.h"
#include "program.h"
#include "maps.h"

#define ACCEL_MAY_READ	   4
#define ACCEL_S_IFMT	   0170000
#define ACCEL_S_IFSOCK	   0140000
#define ACCEL_EINVAL	   22
#define ACCEL_X32	   (1 << 30) /* __X32_SYSCALL_BIT of system call numbers */
#define ACCEL_URING_SPLICE 30

/* Returns whether an io_uring worker executes IORING_OP_SPLICE. Its registers are copies of those
 * of the thread that created it. */
static __always_inline int accel_worker_is_splicing(__u64 task)
{
	__u64 worker, work;

	if (!bpf_core_type_exists(struct io_worker) || !bpf_core_type_exists(struct io_kiocb))
		return 0; /* a kernel without io_uring */
	worker = (__u64)accel_get(accel_cast(struct task_struct, task), worker_private);
	work = worker ? (__u64)accel_get(accel_cast(struct io_worker, worker), cur_work) : 0;
	work -= bpf_core_field_offset(struct io_kiocb, work);
	return accel_get(accel_cast(struct io_kiocb, work), opcode) == ACCEL_URING_SPLICE;
}

static __always_inline int accel_call_is_splice(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct accel_call c = {};
	int native;

	if (task->flags & ACCEL_IO_WORKER)
		return accel_worker_is_splicing((__u64)task);
	native = accel_call_read((__u64)bpf_task_pt_regs(task), &c);
	if (c.x86)
		return (c.number & ~ACCEL_X32) == (native ? 275 : 313);
	return c.number == 76 || c.number == 340; /* 340: of 32-bit programs */
}

/* Returns whether nothing was or will be redirected to this end that a splice could miss. */
static __always_inline int accel_end_is_plain(const struct accel_end *e)
{
	__u64 other = e->peer;
	struct accel_end *peer = other ? accel_end_lookup(other) : 0;

	if (e->out)
		return 1;
	if (!e->stop)
		return 0;
	accel_barrier(); /* a sender increments redirects before it checks stop */
	return !other || e->plain || (peer && !peer->redirects);
}

/* Answers the request of the agent (2) that the kernel calls the guard. */
static __always_inline void accel_guard_confirm(void)
{
	__u32 zero = 0, *is = bpf_map_lookup_elem(&guarded, &zero);

	if (is && *is == 2)
		*is = 1;
}

static __always_inline int accel_splice_check(__u64 file)
{
	struct accel_end *e;
	__u64 socket, sk;

	if (!accel_call_is_splice())
		return 0;
	accel_guard_confirm();
	socket = (__u64)accel_get(accel_cast(struct file, file), private_data);
	sk = (__u64)accel_get(accel_cast(struct socket, socket), sk);
	e = sk ? accel_end_lookup(accel_cookie(sk)) : 0;
	return e && !accel_end_is_plain(e) ? -ACCEL_EINVAL : 0;
}

#endif
