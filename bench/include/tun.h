// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base.h"

/* tun_open_queue opens a queue of a TUN device. With a virtio-net header, checksums and
 * segmentation of TCP are offloaded to the kernel, and those of `further` if it supports them (UDP:
 * Linux 6.2). */
static inline int tun_open_queue(const char *name, int flags, unsigned further)
{
	struct ifreq ifr = { .ifr_flags = IFF_TUN | IFF_NO_PI | flags };
	unsigned offloads = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
	int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

	if (fd < 0)
		die("open /dev/net/tun");
	strncpy(ifr.ifr_name, name, IFNAMSIZ - 1);
	if (ioctl(fd, TUNSETIFF, &ifr))
		die("create the device");
	if (flags & IFF_VNET_HDR && ioctl(fd, TUNSETOFFLOAD, offloads | further) &&
	    ioctl(fd, TUNSETOFFLOAD, offloads))
		die("switch offloads on");
	return fd;
}
