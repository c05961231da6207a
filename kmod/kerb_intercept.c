// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* Delivery of time-critical packets by a kernel module, the other method alongside eBPF: a
 * netfilter hook at the ingress of a device copies what a class matches into a ring that the
 * program has mapped. A class lives as long as its open file: the module cannot be removed under
 * it, and a program that ends, however it ends, leaves nothing behind. */
#include <linux/capability.h>
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/nsproxy.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/timekeeping.h>
#include <linux/uaccess.h>
#include <net/net_namespace.h>

#include "kerb_intercept.h"
#include "match.h"
#include "ring.h"

struct icpt_class {
	struct list_head list; /* in attached */
	struct mutex lock; /* of attaching */
	struct icpt_rule rule;
	struct net_device *dev; /* NULL: not attached, or the device is gone */
	struct nf_hook_ops hook;
	struct ring ring;
	bool ready; /* the ring is there, and stays */
	/* Under the ring's lock. */
	struct icpt_stats stats;
	u64 seq;
	u64 seen, moved; /* where the program was, and when it last moved or had nothing to read */
};

static LIST_HEAD(attached); /* under rtnl, as attaching and detaching are */

static bool steals(const struct icpt_class *c) { return c->rule.action == ICPT_STEAL; }

static u32 flags_of(const struct icpt_class *c, const struct sk_buff *skb, const struct headers *h)
{
	u32 flags = h->family == 4 ? ICPT_IP4 : ICPT_IP6;

	flags |= steals(c) ? ICPT_STOLEN : 0;
	flags |= h->fragment ? ICPT_FRAGMENT : 0;
	flags |= h->whole_l4 ? ICPT_L4 : 0;
	flags |= skb_is_gso(skb) ? ICPT_SEGMENTS : 0;
	return flags |
	       (skb_vlan_tag_present(skb) ? (u32)skb_vlan_tag_get(skb) << ICPT_TCI_SHIFT : 0);
}

static void fill(const struct icpt_class *c, struct icpt_record *r, const struct sk_buff *skb,
		 const struct headers *h, u64 now)
{
	*r = (struct icpt_record){
		.seq = c->seq,
		.time = now,
		.lost = c->stats.lost,
		.len = skb->mac_len + skb->len,
		.l3 = skb->mac_len,
		.l4 = skb->mac_len + h->l4,
		.payload = skb->mac_len + h->payload,
		.slot = c->rule.slot,
		.ifindex = skb->dev->ifindex,
		.flags = flags_of(c, skb, h),
		.cpu = raw_smp_processor_id(),
		.pid = task_pid_nr(current),
	};
	r->caplen = min(r->len, c->rule.caplen ?: U32_MAX);
	r->flags |= r->caplen < r->len ? ICPT_TRUNCATED : 0;
}

/* deliver puts a packet into the ring if there is room. Under the ring's lock. */
static bool deliver(struct icpt_class *c, const struct sk_buff *skb, const struct headers *h,
		    u64 now)
{
	struct icpt_record header, *r;

	fill(c, &header, skb, h, now);
	c->seq++;
	r = ring_reserve(&c->ring, sizeof(*r) + header.caplen);
	if (!r || skb_copy_bits(skb, -skb->mac_len, r + 1, header.caplen)) {
		c->stats.lost++;
		return false;
	}
	*r = header;
	ring_commit(&c->ring, sizeof(*r) + header.caplen);
	c->stats.delivered++;
	return true;
}

/* stalled reports that a program lets records wait for longer than it may: then nothing is stolen
 * from the stack. */
static bool stalled(struct icpt_class *c, u64 now)
{
	u64 position = ring_position(&c->ring);

	if (position != c->seen || position == c->ring.written) {
		c->seen = position;
		c->moved = now;
	}
	/* another CPU may have set moved since now */
	return steals(c) && now > c->moved && now - c->moved > c->rule.watchdog;
}

/* What finds no room passes to the stack even if it was to be stolen: a program that does not read
 * cannot starve the stack. */
static unsigned int receive(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	u64 now = ktime_get_mono_fast_ns(); /* the clock of bpf_ktime_get_ns */
	struct icpt_class *c = priv;
	struct headers h = { 0 };
	bool delivered = false;

	if (!parse(skb, &h) || !matches(&c->rule, skb, &h))
		return NF_ACCEPT;
	spin_lock(&c->ring.lock);
	c->stats.packets++;
	c->stats.bytes += skb->mac_len + skb->len;
	if (stalled(c, now))
		c->stats.passed++;
	else
		delivered = deliver(c, skb, &h, now);
	spin_unlock(&c->ring.lock);
	return delivered && steals(c) ? NF_DROP : NF_ACCEPT;
}

static int check(const struct icpt_rule *rule)
{
	if ((rule->action != ICPT_COPY && rule->action != ICPT_STEAL) ||
	    rule->pattern_len > ICPT_PATTERN || rule->first_port > rule->last_port)
		return -EINVAL;
	return rule->family && rule->family != 4 && rule->family != 6 ? -EINVAL : 0;
}

/* hook_up is under rtnl, which keeps the device. */
static int hook_up(struct icpt_class *c, struct net *net)
{
	struct net_device *dev = __dev_get_by_index(net, c->rule.ifindex);
	int err;

	if (!dev || dev->type != ARPHRD_ETHER)
		return dev ? -EOPNOTSUPP : -ENODEV;
	c->hook = (struct nf_hook_ops){ .hook = receive,
					.priv = c,
					.dev = dev,
					.pf = NFPROTO_NETDEV,
					.hooknum = NF_NETDEV_INGRESS,
					.priority = INT_MIN };
	err = nf_register_net_hook(net, &c->hook);
	if (err)
		return err;
	c->dev = dev;
	list_add(&c->list, &attached);
	return 0;
}

static void unhook(struct icpt_class *c)
{
	if (!c->dev)
		return;
	nf_unregister_net_hook(dev_net(c->dev), &c->hook);
	c->dev = NULL;
	list_del(&c->list);
}

static long attach(struct icpt_class *c, const struct icpt_rule __user *from)
{
	struct net *net = current->nsproxy->net_ns;
	struct icpt_rule rule;
	int err;

	if (!ns_capable(net->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	if (copy_from_user(&rule, from, sizeof(rule)))
		return -EFAULT;
	err = check(&rule);
	if (err)
		return err;
	if (c->ready)
		return -EBUSY;
	err = ring_init(&c->ring, rule.ring);
	if (err)
		return err;
	c->rule = rule;
	rtnl_lock();
	err = hook_up(c, net);
	rtnl_unlock();
	if (err)
		ring_free(&c->ring);
	else
		smp_store_release(&c->ready, true);
	return err;
}

static long stats(struct icpt_class *c, struct icpt_stats __user *to)
{
	struct icpt_stats s;

	if (!smp_load_acquire(&c->ready))
		return -ENXIO;
	spin_lock_bh(&c->ring.lock);
	s = c->stats;
	spin_unlock_bh(&c->ring.lock);
	return copy_to_user(to, &s, sizeof(s)) ? -EFAULT : 0;
}

static long icpt_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct icpt_class *c = file->private_data;
	long err;

	switch (cmd) {
	case ICPT_ATTACH:
		mutex_lock(&c->lock);
		err = attach(c, (void __user *)arg);
		mutex_unlock(&c->lock);
		return err;
	case ICPT_STATS:
		return stats(c, (void __user *)arg);
	}
	return -ENOTTY;
}

static int icpt_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct icpt_class *c = file->private_data;

	return smp_load_acquire(&c->ready) ? ring_mmap(&c->ring, vma) : -ENXIO;
}

static __poll_t icpt_poll(struct file *file, poll_table *table)
{
	struct icpt_class *c = file->private_data;

	if (!smp_load_acquire(&c->ready))
		return EPOLLERR;
	poll_wait(file, &c->ring.wait, table);
	return (ring_has_data(&c->ring) ? EPOLLIN | EPOLLRDNORM : 0) |
	       (READ_ONCE(c->dev) ? 0 : EPOLLHUP);
}

static int icpt_open(struct inode *inode, struct file *file)
{
	struct icpt_class *c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	file->private_data = c;
	return 0;
}

/* A hook that is taken out may be running still, until a grace period is over. */
static int icpt_release(struct inode *inode, struct file *file)
{
	struct icpt_class *c = file->private_data;

	rtnl_lock();
	unhook(c);
	rtnl_unlock();
	if (c->ready) {
		synchronize_net();
		ring_free(&c->ring);
	}
	kfree(c);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = icpt_open,
	.release = icpt_release,
	.unlocked_ioctl = icpt_ioctl,
	.mmap = icpt_mmap,
	.poll = icpt_poll,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "kerb-intercept",
	.fops = &operations,
	.mode = 0600,
};

/* A device that goes, or leaves its namespace, takes its hooks along; the program is notified by
 * EPOLLHUP. Under rtnl. */
static int device_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);
	struct icpt_class *c, *next;

	if (event != NETDEV_UNREGISTER)
		return NOTIFY_DONE;
	list_for_each_entry_safe(c, next, &attached, list) {
		if (c->dev != dev)
			continue;
		unhook(c);
		wake_up_interruptible_poll(&c->ring.wait, EPOLLHUP);
	}
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = device_event };

static int __init icpt_init(void)
{
	int err = register_netdevice_notifier(&notifier);

	if (err)
		return err;
	err = misc_register(&device);
	if (err)
		unregister_netdevice_notifier(&notifier);
	return err;
}

static void __exit icpt_exit(void)
{
	misc_deregister(&device);
	unregister_netdevice_notifier(&notifier);
}

module_init(icpt_init);
module_exit(icpt_exit);
MODULE_DESCRIPTION("Kerb: delivery of time-critical packets to programs");
MODULE_LICENSE("Dual BSD/GPL");
