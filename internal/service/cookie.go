// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Cookies caches the cookies of services' network namespaces: numbers that are unique until a reboot, and that BPF
// programs get from bpf_get_netns_cookie (SO_NETNS_COOKIE, Linux 5.14). The zero value is ready to use.
type Cookies struct {
	mu    sync.Mutex
	known map[string]uint64
}

// mostCookies is the number of cached cookies; beyond it, all are read again.
const mostCookies = 8192

// Get returns the network namespace cookie of the service with these links. The first call for a service enters the
// namespace, which needs CAP_SYS_ADMIN.
func (c *Cookies) Get(spec v1alpha1.ServiceSpec, links []Link) (uint64, error) {
	key := cookieKey(spec, links)
	c.mu.Lock()
	cookie := c.known[key]
	c.mu.Unlock()
	if cookie != 0 {
		return cookie, nil
	}
	cookie, err := netnsCookie(spec, links)
	if err != nil || len(links) == 0 {
		return cookie, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= mostCookies {
		c.known = map[string]uint64{}
	}
	c.known[key] = cookie
	return cookie, nil
}

// cookieKey identifies a namespace: inodes are reused, but not together with the ifindexes of its links.
func cookieKey(spec v1alpha1.ServiceSpec, links []Link) string {
	path := spec.Netns
	if spec.PID != 0 {
		path = fmt.Sprintf("/proc/%d/ns/net", spec.PID)
	}
	var key strings.Builder
	if path != "" {
		at, _ := nsKeyAt(path)
		fmt.Fprint(&key, at)
	}
	for _, l := range links {
		fmt.Fprint(&key, " ", l.Ifindex, " ", l.PeerIndex, " ", l.PeerMAC)
	}
	return key.String()
}

// netnsCookie returns the cookie of a service's network namespace, by which programs on sockets identify the service of
// a socket (SO_NETNS_COOKIE, Linux 5.14). Errors name what is missing: the interface, the kernel's option, or
// CAP_SYS_ADMIN.
func netnsCookie(spec v1alpha1.ServiceSpec, links []Link) (cookie uint64, err error) {
	var link Link
	if len(links) > 0 {
		link = links[0]
	} else if spec.Interface != "" {
		return 0, fmt.Errorf("%s: %w", spec.Interface, ErrInterfaceGone)
	}
	ns, err := openNamespaceOf(spec, link)
	if err != nil {
		return 0, err
	}
	defer unix.Close(ns)
	err = enter(ns, func() (err error) {
		cookie, err = cookieHere()
		return err
	})
	switch {
	case errors.Is(err, unix.EPERM):
		return 0, fmt.Errorf("%w: the agent needs CAP_SYS_ADMIN to identify the sockets of services", err)
	case errors.Is(err, unix.ENOPROTOOPT):
		return 0, fmt.Errorf("%w: SO_NETNS_COOKIE needs Linux 5.14", err)
	}
	return cookie, err
}

// cookieHere returns the cookie of the calling thread's namespace.
func cookieHere() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}
