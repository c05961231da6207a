/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs: which executable a process runs, and whether it may. */
#ifndef ACCEL_JUDGE_H
#define ACCEL_JUDGE_H

#include "maps.h"

/* When a file was written, ns since 1970: again where it lies, it keeps its inode. */
static __always_inline __u64 accel_modified(__u64 inode)
{
	struct inode___before_6_7 *old = accel_cast(struct inode___before_6_7, inode);
	struct inode___before_6_11 *newer = accel_cast(struct inode___before_6_11, inode);
	struct inode___6_11 *now = accel_cast(struct inode___6_11, inode);
	__u64 sec, nsec;

	if (bpf_core_field_exists(now->i_mtime_sec)) {
		sec = accel_get(now, i_mtime_sec);
		nsec = accel_get(now, i_mtime_nsec);
	} else if (bpf_core_field_exists(newer->__i_mtime)) {
		sec = accel_get(newer, __i_mtime.tv_sec);
		nsec = accel_get(newer, __i_mtime.tv_nsec);
	} else {
		sec = accel_get(old, i_mtime.tv_sec);
		nsec = accel_get(old, i_mtime.tv_nsec);
	}
	return sec * 1000000000 + nsec;
}

/* What a thread executes, or 0: kernel threads have nothing. */
static __always_inline __u64 accel_exe_of(__u64 task)
{
	__u64 mm = (__u64)accel_get(accel_cast(struct task_struct, task), mm);

	return mm ? (__u64)accel_get(accel_cast(struct mm_struct, mm), exe_file) : 0;
}

/* A number of a mount that none has later: before Linux 6.8, within its namespace. */
static __always_inline __u32 accel_mount_number(__u64 mount)
{
	struct mount___6_8 *newer = accel_cast(struct mount___6_8, mount);
	__u64 namespace;

	if (bpf_core_field_exists(newer->mnt_id_unique))
		return accel_get(newer, mnt_id_unique);
	namespace = (__u64)accel_get(accel_cast(struct mount, mount), mnt_ns);
	return accel_get(accel_cast(struct mount, mount), mnt_id) ^
	       (__u32)accel_get(accel_cast(struct mnt_namespace, namespace), seq) << 16;
}

#define ACCEL_WRITABLE 022 /* by group or others */
#define ACCEL_MOUNTS   4   /* on top of each other */

/* Not 0 where others than root may change it. */
static __always_inline __u32 accel_changeable(__u64 dentry)
{
	__u64 inode = (__u64)accel_get(accel_cast(struct dentry, dentry), d_inode);

	return accel_get(accel_cast(struct inode, inode), i_uid.val) |
	       (accel_get(accel_cast(struct inode, inode), i_mode) & ACCEL_WRITABLE);
}

/* Where in a file system's tree, and on which mount. */
struct accel_place {
	__u64 dentry, mount;
	__u64 root, root_mount; /* of the process, where its paths begin; 0: of the namespace */
	__u32 changeable;	/* as accel_changeable returns, of all places so far */
};

static __always_inline __u64 accel_mount_of(__u64 vfsmount)
{
	return vfsmount - bpf_core_field_offset(struct mount, mnt);
}

/* The executable of a process. Its root directory counts in the first user namespace only: any user
 * may make another one and chroot there, to where a program has the path of a known one. */
static __always_inline struct accel_place accel_executable_of(__u64 address)
{
	__u64 exe = accel_exe_of(address), fs, cred, namespace, vfsmount;
	struct task_struct *task = accel_cast(struct task_struct, address);
	struct accel_place p = {};

	vfsmount = (__u64)accel_get(accel_cast(struct file, exe), f_path.mnt);
	p.mount = accel_mount_of(vfsmount);
	p.dentry = (__u64)accel_get(accel_cast(struct file, exe), f_path.dentry);
	p.changeable = accel_changeable(p.dentry);
	cred = (__u64)accel_get(task, real_cred);
	namespace = (__u64)accel_get(accel_cast(struct cred, cred), user_ns);
	fs = (__u64)accel_get(task, fs);
	if (!namespace || accel_get(accel_cast(struct user_namespace, namespace), level) || !fs)
		return p;
	vfsmount = (__u64)accel_get(accel_cast(struct fs_struct, fs), root.mnt);
	p.root_mount = accel_mount_of(vfsmount);
	p.root = (__u64)accel_get(accel_cast(struct fs_struct, fs), root.dentry);
	return p;
}

static __always_inline int accel_at_root(const struct accel_place *p)
{
	__u64 root = p->root;

	barrier_var(root); /* or clang joins comparisons with 0, which the verifier refuses */
	return p->dentry == root && p->mount == p->root_mount;
}

/* From the root of a mount to what it is mounted on. Returns whether there is more of the path. */
static __always_inline int accel_leave_mounts(struct accel_place *p)
{
	__u64 mount, parent;
	__u32 i;

	for (i = 0; i < ACCEL_MOUNTS; i++) {
		if (accel_at_root(p))
			return 0;
		mount = p->mount;
		if (p->dentry != (__u64)accel_get(accel_cast(struct mount, mount), mnt.mnt_root))
			break;
		parent = (__u64)accel_get(accel_cast(struct mount, mount), mnt_parent);
		if (parent == mount)
			return 0;
		p->dentry = (__u64)accel_get(accel_cast(struct mount, mount), mnt_mountpoint);
		p->mount = parent;
		p->changeable |= accel_changeable(p->dentry);
	}
	return 1;
}

static __always_inline void accel_ascend(struct accel_place *p)
{
	__u64 dentry = p->dentry;

	p->dentry = (__u64)accel_get(accel_cast(struct dentry, dentry), d_parent);
	p->changeable |= accel_changeable(p->dentry);
}

/* A number of the root directory at which the path of a task's executable begins, 0 for that of the
 * mount namespace, also where a program has left its executable outside. As accel_path, a function
 * that the verifier checks by itself, once. */
__noinline int accel_root_number(__u64 task)
{
	struct accel_place p = accel_executable_of(task),
			   root = {.dentry = p.root, .mount = p.root_mount};
	__u64 inode, dentry;
	__u32 n;

	if (!p.root || !accel_leave_mounts(&root))
		return 0;
	for (n = 0; n < ACCEL_NAMES && accel_leave_mounts(&p); n++)
		accel_ascend(&p);
	if (!accel_at_root(&p))
		return 0;
	dentry = p.root;
	inode = (__u64)accel_get(accel_cast(struct dentry, dentry), d_inode);
	return (__u32)accel_get(accel_cast(struct inode, inode), i_ino) * 0x9e3779b1 +
	       accel_mount_number(p.root_mount);
}

/* The number that an address is: functions which the verifier checks by themselves take no pointer
 * into the kernel. */
static __always_inline __u64 accel_number(__u64 address)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &address);
	return number;
}

static __always_inline struct accel_file accel_file_of(__u64 task)
{
	__u64 exe = accel_exe_of(task), inode, super, vfsmount;
	struct accel_file f = {};

	if (!exe)
		return f;
	inode = (__u64)accel_get(accel_cast(struct file, exe), f_inode);
	super = (__u64)accel_get(accel_cast(struct inode, inode), i_sb);
	vfsmount = (__u64)accel_get(accel_cast(struct file, exe), f_path.mnt);
	f.inode = accel_get(accel_cast(struct inode, inode), i_ino);
	f.device = accel_get(accel_cast(struct super_block, super), s_dev);
	f.generation = accel_get(accel_cast(struct inode, inode), i_generation) ^
		       (__u32)accel_modified(inode) ^
		       accel_mount_number(accel_mount_of(vfsmount)) ^
		       accel_root_number(accel_number(task));
	return f;
}

/* Of the process that this code runs in, which has to be the socket's. */
#define accel_current_file() accel_file_of(bpf_get_current_task())

/* The path of a task's executable, from its name up to the root directory. It is read without
 * locks: who renames directories meanwhile may make it a path that was none. */
__noinline int accel_path(struct accel_event *e, __u64 task)
{
	struct accel_place p = accel_executable_of(task);
	__u64 name, dentry;
	long length;
	__u32 n;

	if (!e)
		return 0;
	e->flags = ACCEL_TRUNCATED;
	for (n = 0; n <= ACCEL_NAMES; n++) {
		if (!accel_leave_mounts(&p)) {
			e->flags = 0;
			break;
		}
		if (n == ACCEL_NAMES)
			break;
		dentry = p.dentry;
		name = (__u64)accel_get(accel_cast(struct dentry, dentry), d_name.name);
		length = bpf_probe_read_kernel_str(e->names[n], ACCEL_NAME, (void *)name);
		if (length <= 0 || length == ACCEL_NAME)
			break;
		accel_ascend(&p);
	}
	if (p.changeable)
		e->flags |= ACCEL_CHANGEABLE;
	return 0;
}

static __noinline int accel_describe(struct accel_event *e, __u64 address)
{
	struct task_struct *task = accel_cast(struct task_struct, address);
	__u32 i;

	e->pid = accel_get(task, tgid);
	for (i = 0; i < ACCEL_NAMES; i++)
		e->names[i][0] = 0;
	accel_path(e, accel_number(address));
	return bpf_probe_read_kernel(
		e->comm, sizeof(e->comm),
		(void *)(address + bpf_core_field_offset(struct task_struct, comm)));
}

/* Asks the control plane about a program: once, and again after a second without an answer, as when
 * no agent runs. */
static __always_inline void accel_ask_about(__u64 task, const struct accel_file *f)
{
	struct accel_executable asked = { .verdict = ACCEL_ASKED, .since = bpf_ktime_get_ns() },
				*known;
	struct accel_event *e;

	known = bpf_map_lookup_elem(&executables, f);
	if (!f->inode || (known && (known->verdict != ACCEL_ASKED ||
				    asked.since - known->since < 1000000000ull)))
		return;
	e = bpf_ringbuf_reserve(&unjudged, sizeof(*e), 0);
	if (!e)
		return;
	bpf_map_update_elem(&executables, f, &asked, BPF_ANY);
	e->file = *f;
	accel_describe(e, task);
	bpf_ringbuf_submit(e, 0);
}

/* The same about the process that this code runs in. */
#define accel_ask(f) accel_ask_about(bpf_get_current_task(), f)

#define ACCEL_IO_WORKER 0x10 /* PF_IO_WORKER */

/* Whether a thread, or the one that its process began with, has ever used io_uring. What is
 * received by it, armed by poll or by a thread of the kernel, shows in no wait queue, so that
 * nothing of what redirected sockets cannot do would be seen. */
static __always_inline int accel_uses_uring(__u64 address)
{
	struct task_struct *task = accel_cast(struct task_struct, address), *leader;
	__u64 first;

	if (!bpf_core_field_exists(task->io_uring))
		return 0;
	if (accel_get(task, io_uring) || accel_get(task, flags) & ACCEL_IO_WORKER)
		return 1;
	first = (__u64)accel_get(task, group_leader);
	leader = accel_cast(struct task_struct, first);
	return !!accel_get(leader, io_uring);
}

static __always_inline enum accel_reason accel_examine_calls(const struct accel_file *f)
{
	const struct accel_executable *x = bpf_map_lookup_elem(&executables, f);

	if (!x || x->verdict == ACCEL_ASKED)
		return ACCEL_UNJUDGED;
	if (x->verdict == ACCEL_SAFE || x->verdict == ACCEL_ALLOWED)
		return ACCEL_FINE;
	return x->verdict == ACCEL_CAUGHT ? x->reason : ACCEL_EXECUTABLE;
}

#define ACCEL_BLOCKED 4 /* connections */

/* A thread does what redirected sockets cannot: its connection, and its program, do not take part
 * any more. Returns why, or that it is allowed to. */
static __noinline int accel_exclude_program(__u64 task, enum accel_reason why)
{
	struct accel_file f = accel_file_of(task);
	struct accel_executable *x = bpf_map_lookup_elem(&executables, &f);

	if (x && x->verdict == ACCEL_ALLOWED)
		return ACCEL_FINE;
	if (x && x->verdict == ACCEL_SAFE &&
	    (why != ACCEL_BLOCKING || __sync_fetch_and_add(&x->blocked, 1) + 1 >= ACCEL_BLOCKED)) {
		x->reason = why;
		x->verdict = ACCEL_CAUGHT;
	}
	return why;
}

#define ACCEL_PROVEN 32 /* messages */

/* The running program has sent so much on a connection without being seen to block: on others it
 * did so by exception. */
static __noinline int accel_readmit_program(void)
{
	struct accel_file f = accel_current_file();
	struct accel_executable *x = bpf_map_lookup_elem(&executables, &f);

	if (x)
		x->blocked = 0;
	return 0;
}

#endif
