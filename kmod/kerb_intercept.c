// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
//go:build ignore

/* Delivery of time-critical packets by a kernel module, as an alternative to eBPF: a netfilter hook
 * at the ingress of a device copies the packets of a class into a ring that the program has mapped.
 * A class exists as long as its open file: the module cannot be unloaded meanwhile, and nothing
 * remains when the program exits, also by a signal. */
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
	struct mutex lock;     /* serializes ICPT_ATTACH */
	struct icpt_rule rule;
	struct net_device *dev; /* NULL: not attached, or the device was unregistered */
	struct nf_hook_ops hook;
	struct ring ring;
	bool ready; /* the ring is allocated, until release */
	/* protected by ring.lock */
	struct icpt_stats stats;
	u64 seq;
	u64 seen,
		moved; /* last consumer position, and when it last changed or the ring was empty */
};

static LIST_HEAD(attached); /* protected by rtnl, like attaching and detaching */

static bool icpt_steals(const struct icpt_class *c)
{
	return c->rule.action == ICPT_STEAL;
}

static u32 icpt_flags(const struct icpt_class *c, const struct sk_buff *skb,
		      const struct headers *h)
{
	u32 flags = h->family == 4 ? ICPT_IP4 : ICPT_IP6;

	flags |= icpt_steals(c) ? ICPT_STOLEN : 0;
	flags |= h->fragment ? ICPT_FRAGMENT : 0;
	flags |= h->whole_l4 ? ICPT_L4 : 0;
	flags |= skb_is_gso(skb) ? ICPT_SEGMENTS : 0;
	return flags |
	       (skb_vlan_tag_present(skb) ? (u32)skb_vlan_tag_get(skb) << ICPT_TCI_SHIFT : 0);
}

static void icpt_record_fill(const struct icpt_class *c, struct icpt_record *r,
			     const struct sk_buff *skb, const struct headers *h, u64 now)
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
		.flags = icpt_flags(c, skb, h),
		.cpu = raw_smp_processor_id(),
		.pid = task_pid_nr(current),
	};
	r->caplen = min(r->len, c->rule.caplen ?: U32_MAX);
	r->flags |= r->caplen < r->len ? ICPT_TRUNCATED : 0;
}

/* icpt_deliver adds a packet to the ring. Returns false if it is full. Caller holds ring.lock. */
static bool icpt_deliver(struct icpt_class *c, const struct sk_buff *skb, const struct headers *h,
			 u64 now)
{
	struct icpt_record header, *r;

	icpt_record_fill(c, &header, skb, h, now);
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

/* icpt_is_stalled reports whether records of a class that steals have been unread for longer than
 * the watchdog: then packets pass to the network stack. */
static bool icpt_is_stalled(struct icpt_class *c, u64 now)
{
	u64 position = ring_position(&c->ring);

	if (position != c->seen || position == c->ring.written) {
		c->seen = position;
		c->moved = now;
	}
	/* moved may be later than now, set by another CPU */
	return icpt_steals(c) && now > c->moved && now - c->moved > c->rule.watchdog;
}

/* The netfilter hook. Packets that do not fit into the ring pass to the network stack even if they
 * were to be stolen, so that a program that does not read cannot starve it. */
static unsigned int icpt_receive(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	u64 now = ktime_get_mono_fast_ns(); /* the clock of bpf_ktime_get_ns */
	struct icpt_class *c = priv;
	struct headers h = { 0 };
	bool delivered = false;

	if (!icpt_parse(skb, &h) || !icpt_rule_matches(&c->rule, skb, &h))
		return NF_ACCEPT;
	spin_lock(&c->ring.lock);
	c->stats.packets++;
	c->stats.bytes += skb->mac_len + skb->len;
	if (icpt_is_stalled(c, now))
		c->stats.passed++;
	else
		delivered = icpt_deliver(c, skb, &h, now);
	spin_unlock(&c->ring.lock);
	return delivered && icpt_steals(c) ? NF_DROP : NF_ACCEPT;
}

static int icpt_rule_check(const struct icpt_rule *rule)
{
	if ((rule->action != ICPT_COPY && rule->action != ICPT_STEAL) ||
	    rule->pattern_len > ICPT_PATTERN || rule->first_port > rule->last_port)
		return -EINVAL;
	return rule->family && rule->family != 4 && rule->family != 6 ? -EINVAL : 0;
}

/* icpt_hook_register registers the hook. Caller holds rtnl, which keeps the device. */
static int icpt_hook_register(struct icpt_class *c, struct net *net)
{
	struct net_device *dev = __dev_get_by_index(net, c->rule.ifindex);
	int err;

	if (!dev || dev->type != ARPHRD_ETHER)
		return dev ? -EOPNOTSUPP : -ENODEV;
	c->hook = (struct nf_hook_ops){ .hook = icpt_receive,
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

static void icpt_hook_unregister(struct icpt_class *c)
{
	if (!c->dev)
		return;
	nf_unregister_net_hook(dev_net(c->dev), &c->hook);
	c->dev = NULL;
	list_del(&c->list);
}

static long icpt_attach(struct icpt_class *c, const struct icpt_rule __user *from)
{
	struct net *net = current->nsproxy->net_ns;
	struct icpt_rule rule;
	int err;

	if (!ns_capable(net->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	if (copy_from_user(&rule, from, sizeof(rule)))
		return -EFAULT;
	err = icpt_rule_check(&rule);
	if (err)
		return err;
	if (c->ready)
		return -EBUSY;
	err = ring_init(&c->ring, rule.ring);
	if (err)
		return err;
	c->rule = rule;
	rtnl_lock();
	err = icpt_hook_register(c, net);
	rtnl_unlock();
	if (err)
		ring_free(&c->ring);
	else
		smp_store_release(&c->ready, true);
	return err;
}

static long icpt_get_stats(struct icpt_class *c, struct icpt_stats __user *to)
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
		err = icpt_attach(c, (void __user *)arg);
		mutex_unlock(&c->lock);
		return err;
	case ICPT_STATS:
		return icpt_get_stats(c, (void __user *)arg);
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

/* An unregistered hook may still run until a grace period has elapsed. */
static int icpt_release(struct inode *inode, struct file *file)
{
	struct icpt_class *c = file->private_data;

	rtnl_lock();
	icpt_hook_unregister(c);
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

/* Unregisters the hooks of a device that is removed or moved to another namespace, and notifies
 * programs by EPOLLHUP. Called with rtnl held. */
static int device_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);
	struct icpt_class *c, *next;

	if (event != NETDEV_UNREGISTER)
		return NOTIFY_DONE;
	list_for_each_entry_safe(c, next, &attached, list) {
		if (c->dev != dev)
			continue;
		icpt_hook_unregister(c);
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
