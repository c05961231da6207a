// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// systemPaths may be read and executed: programs, libraries, and what these read when they start.
var systemPaths = []string{
	"/usr", "/bin", "/lib", "/lib32", "/lib64",
	"/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/mime.types",
	"/etc/ssl", "/etc/ca-certificates", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/crypto-policies",
	"/dev/urandom", "/dev/random", "/dev/zero",
	"/proc/self", "/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage",
}

// networkPaths are what looking up names needs.
var networkPaths = []string{
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols",
	"/run/systemd/resolve",
}

const (
	readRights  = landlock.AccessFSSet(ll.AccessFSExecute | ll.AccessFSReadFile)
	dirRights   = readRights | ll.AccessFSReadDir
	writeRights = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate |
		ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSMakeSym | ll.AccessFSMakeSock | ll.AccessFSMakeFifo |
		ll.AccessFSRemoveFile | ll.AccessFSRemoveDir
)

// restrictPaths puts this process, with all its threads, inside Landlock, as far as the kernel has it. Nothing can be both
// written and executed.
func (o *order) restrictPaths() error {
	rules, err := o.pathRules()
	if err != nil {
		return err
	}
	best := landlock.V11.BestEffort()
	if !o.Network {
		return best.Restrict(rules...)
	}
	if err := best.RestrictPaths(rules...); err != nil {
		return err
	}
	return best.RestrictScoped()
}

func (o *order) pathRules() ([]landlock.Rule, error) {
	var rules []landlock.Rule
	optional := systemPaths
	if o.Network {
		optional = append(optional[:len(optional):len(optional)], networkPaths...)
	}
	for _, path := range optional {
		if rule, err := readRule(path); err == nil {
			rules = append(rules, rule)
		}
	}
	for _, path := range append([]string{o.Dir}, o.Read...) {
		rule, err := readRule(path)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	for _, path := range o.Write {
		rules = append(rules, writeRule(path))
	}
	return append(rules, landlock.PathAccess(ll.AccessFSReadFile|ll.AccessFSWriteFile, "/dev/null")), nil
}

func readRule(path string) (landlock.Rule, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("may be read: %w", err)
	}
	if info.IsDir() {
		return landlock.PathAccess(dirRights, path), nil
	}
	return landlock.PathAccess(readRights, path), nil
}

// writeRule has renaming between directories only where the kernel can restrict it: a rule with it makes best effort on
// others (before Linux 5.19) mean no Landlock at all.
func writeRule(path string) landlock.Rule {
	rule := landlock.PathAccess(writeRights, path)
	if abi, err := ll.LandlockGetABIVersion(); err == nil && abi >= 2 {
		return rule.WithRefer()
	}
	return rule
}
