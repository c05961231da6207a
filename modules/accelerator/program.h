/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs: the executable of a process, and the verdict on it. */
#ifndef ACCEL_PROGRAM_H
#define ACCEL_PROGRAM_H

#include "maps.h"

/* Returns the mtime of an inode, ns since 1970: a file that is overwritten in place keeps its
 * inode. */
static __always_inline __u64 accel_inode_mtime(__u64 inode)
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

/* Returns the executable (struct file) of a thread, 0 for kernel threads. */
static __always_inline __u64 accel_task_exe(__u64 task)
{
	__u64 mm = (__u64)accel_get(accel_cast(struct task_struct, task), mm);

	return mm ? (__u64)accel_get(accel_cast(struct mm_struct, mm), exe_file) : 0;
}

/* Returns an id of a mount that is not reused; before Linux 6.8, within its mount namespace
 * only. */
static __always_inline __u32 accel_mount_id(__u64 mount)
{
	struct mount___6_8 *newer = accel_cast(struct mount___6_8, mount);
	__u64 namespace;

	if (bpf_core_field_exists(newer->mnt_id_unique))
		return accel_get(newer, mnt_id_unique);
	namespace = (__u64)accel_get(accel_cast(struct mount, mount), mnt_ns);
	return accel_get(accel_cast(struct mount, mount), mnt_id) ^
	       (__u32)accel_get(accel_cast(struct mnt_namespace, namespace), seq) << 16;
}

#define ACCEL_MODE_WRITABLE 022 /* by group or others */
#define ACCEL_MAX_MOUNTS    4	/* that are stacked on one mount point */

/* Returns not 0 if users other than root may change it. */
static __always_inline __u32 accel_dentry_writable_by(__u64 dentry)
{
	__u64 inode = (__u64)accel_get(accel_cast(struct dentry, dentry), d_inode);

	return accel_get(accel_cast(struct inode, inode), i_uid.val) |
	       (accel_get(accel_cast(struct inode, inode), i_mode) & ACCEL_MODE_WRITABLE);
}

/* A position in a mount tree. */
struct accel_place {
	__u64 dentry, mount;
	__u64 root, root_mount; /* root directory of the process; 0: that of the mount namespace */
	__u32 changeable;	/* accel_dentry_writable_by, of all components so far */
};

static __always_inline __u64 accel_mount_of(__u64 vfsmount)
{
	return vfsmount - bpf_core_field_offset(struct mount, mnt);
}

/* Returns the position of the executable of a process. Its root directory counts in the initial
 * user namespace only: in a new user namespace, any user may chroot to a directory where a program
 * has the path of a known one. */
static __always_inline struct accel_place accel_executable_place(__u64 address)
{
	__u64 exe = accel_task_exe(address), fs, cred, namespace, vfsmount;
	struct task_struct *task = accel_cast(struct task_struct, address);
	struct accel_place p = {};

	vfsmount = (__u64)accel_get(accel_cast(struct file, exe), f_path.mnt);
	p.mount = accel_mount_of(vfsmount);
	p.dentry = (__u64)accel_get(accel_cast(struct file, exe), f_path.dentry);
	p.changeable = accel_dentry_writable_by(p.dentry);
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

static __always_inline int accel_place_is_root(const struct accel_place *p)
{
	__u64 root = p->root;

	barrier_var(root); /* or clang merges comparisons with 0, which the verifier rejects */
	return p->dentry == root && p->mount == p->root_mount;
}

/* Moves from the root of a mount to its mount point. Returns 0 at the root directory. */
static __always_inline int accel_place_leave_mounts(struct accel_place *p)
{
	__u64 mount, parent;
	__u32 i;

	for (i = 0; i < ACCEL_MAX_MOUNTS; i++) {
		if (accel_place_is_root(p))
			return 0;
		mount = p->mount;
		if (p->dentry != (__u64)accel_get(accel_cast(struct mount, mount), mnt.mnt_root))
			break;
		parent = (__u64)accel_get(accel_cast(struct mount, mount), mnt_parent);
		if (parent == mount)
			return 0;
		p->dentry = (__u64)accel_get(accel_cast(struct mount, mount), mnt_mountpoint);
		p->mount = parent;
		p->changeable |= accel_dentry_writable_by(p->dentry);
	}
	return 1;
}

static __always_inline void accel_place_ascend(struct accel_place *p)
{
	__u64 dentry = p->dentry;

	p->dentry = (__u64)accel_get(accel_cast(struct dentry, dentry), d_parent);
	p->changeable |= accel_dentry_writable_by(p->dentry);
}

/* Returns an id of the root directory that the path of a task's executable is relative to; 0: that
 * of the mount namespace, also if the executable is outside the root directory. Global like
 * accel_event_fill_path, so that the verifier checks it once. */
__noinline int accel_root_id(__u64 task)
{
	struct accel_place p = accel_executable_place(task),
			   root = { .dentry = p.root, .mount = p.root_mount };
	__u64 inode, dentry;
	__u32 n;

	if (!p.root || !accel_place_leave_mounts(&root))
		return 0;
	for (n = 0; n < ACCEL_NAMES && accel_place_leave_mounts(&p); n++)
		accel_place_ascend(&p);
	if (!accel_place_is_root(&p))
		return 0;
	dentry = p.root;
	inode = (__u64)accel_get(accel_cast(struct dentry, dentry), d_inode);
	return (__u32)accel_get(accel_cast(struct inode, inode), i_ino) * 0x9e3779b1 +
	       accel_mount_id(p.root_mount);
}

/* Returns an address as a scalar, as global functions take no pointers to kernel memory. */
static __always_inline __u64 accel_scalar(__u64 address)
{
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &address);
	return number;
}

static __always_inline struct accel_file accel_file_of(__u64 task)
{
	__u64 exe = accel_task_exe(task), inode, super, vfsmount;
	struct accel_file f = {};

	if (!exe)
		return f;
	inode = (__u64)accel_get(accel_cast(struct file, exe), f_inode);
	super = (__u64)accel_get(accel_cast(struct inode, inode), i_sb);
	vfsmount = (__u64)accel_get(accel_cast(struct file, exe), f_path.mnt);
	f.inode = accel_get(accel_cast(struct inode, inode), i_ino);
	f.device = accel_get(accel_cast(struct super_block, super), s_dev);
	f.generation = accel_get(accel_cast(struct inode, inode), i_generation) ^
		       (__u32)accel_inode_mtime(inode) ^ accel_mount_id(accel_mount_of(vfsmount)) ^
		       accel_root_id(accel_scalar(task));
	return f;
}

/* Of the current process, which has to be that of the socket. */
#define accel_current_file() accel_file_of(bpf_get_current_task())

/* Reads the path of a task's executable, from its name up to the root directory. Without locks:
 * with concurrent renames of directories, the result may be a path that never existed. */
__noinline int accel_event_fill_path(struct accel_event *e, __u64 task)
{
	struct accel_place p = accel_executable_place(task);
	__u64 name, dentry;
	long length;
	__u32 n;

	if (!e)
		return 0;
	e->flags = ACCEL_TRUNCATED;
	for (n = 0; n <= ACCEL_NAMES; n++) {
		if (!accel_place_leave_mounts(&p)) {
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
		accel_place_ascend(&p);
	}
	if (p.changeable)
		e->flags |= ACCEL_CHANGEABLE;
	return 0;
}

static __noinline int accel_event_fill(struct accel_event *e, __u64 address)
{
	struct task_struct *task = accel_cast(struct task_struct, address);
	__u32 i;

	e->pid = accel_get(task, tgid);
	for (i = 0; i < ACCEL_NAMES; i++)
		e->names[i][0] = 0;
	accel_event_fill_path(e, accel_scalar(address));
	return bpf_probe_read_kernel(
		e->comm, sizeof(e->comm),
		(void *)(address + bpf_core_field_offset(struct task_struct, comm)));
}

/* Requests a verdict on a program from the control plane: once, and again after a second without an
 * answer, such as while no agent runs. */
static __always_inline void accel_executable_query(__u64 task, const struct accel_file *f)
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
	accel_event_fill(e, task);
	bpf_ringbuf_submit(e, 0);
}

/* The same for the current process. */
#define accel_current_query(f) accel_executable_query(bpf_get_current_task(), f)

#define ACCEL_IO_WORKER 0x10 /* PF_IO_WORKER */

/* Returns whether a thread, or the first thread of its process, has ever used io_uring. Its
 * receives, by poll or by a kernel thread, are not in the wait queue of the socket, so that
 * incompatible calls would not be noticed. */
static __always_inline int accel_task_uses_uring(__u64 address)
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

static __always_inline enum accel_reason accel_executable_check(const struct accel_file *f)
{
	const struct accel_executable *x = bpf_map_lookup_elem(&executables, f);

	if (!x || x->verdict == ACCEL_ASKED)
		return ACCEL_UNJUDGED;
	if (x->verdict == ACCEL_SAFE || x->verdict == ACCEL_ALLOWED)
		return ACCEL_OK;
	return x->verdict == ACCEL_INCOMPATIBLE ? x->reason : ACCEL_EXECUTABLE;
}

#define ACCEL_MAX_BLOCKED 4 /* connections on which a program may block in recv */

/* Excludes the program of a thread that did what redirected sockets do not support. Returns why, or
 * ACCEL_OK if the program is allowed to. */
static __noinline int accel_program_exclude(__u64 task, enum accel_reason why)
{
	struct accel_file f = accel_file_of(task);
	struct accel_executable *x = bpf_map_lookup_elem(&executables, &f);

	if (x && x->verdict == ACCEL_ALLOWED)
		return ACCEL_OK;
	if (x && x->verdict == ACCEL_SAFE &&
	    (why != ACCEL_BLOCKING ||
	     __sync_fetch_and_add(&x->blocked, 1) + 1 >= ACCEL_MAX_BLOCKED)) {
		x->reason = why;
		x->verdict = ACCEL_INCOMPATIBLE;
	}
	return why;
}

#define ACCEL_READMIT_MESSAGES 32

/* Resets the count of the current program after ACCEL_READMIT_MESSAGES on a connection without a
 * blocking recv: on others it was an exception. */
static __noinline int accel_program_readmit(void)
{
	struct accel_file f = accel_current_file();
	struct accel_executable *x = bpf_map_lookup_elem(&executables, &f);

	if (x)
		x->blocked = 0;
	return 0;
}

#endif
