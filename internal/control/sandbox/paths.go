// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// systemPaths may be read and executed: programs, libraries, and what these read when they start.
var systemPaths = []string{
	"/usr", "/bin", "/lib", "/lib32", "/lib64",
	"/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/mime.types",
	"/etc/ssl", "/etc/ca-certificates", "/etc/pki/tls", "/etc/pki/ca-trust", "/etc/crypto-policies",
	"/dev/urandom", "/dev/random", // not /dev/zero: mapped, it is memory that no process owns
	"/proc/self", "/sys/devices/system/cpu", "/sys/kernel/mm/transparent_hugepage",
}

// networkPaths are what looking up names needs.
var networkPaths = []string{
	"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
	"/etc/protocols",
	"/run/systemd/resolve",
}

const (
	readRights  = ll.AccessFSExecute | ll.AccessFSReadFile
	dirRights   = readRights | ll.AccessFSReadDir
	writeRights = ll.AccessFSReadFile | ll.AccessFSReadDir | ll.AccessFSWriteFile | ll.AccessFSTruncate |
		ll.AccessFSRefer |
		ll.AccessFSMakeReg | ll.AccessFSMakeDir | ll.AccessFSMakeSym | ll.AccessFSMakeSock | ll.AccessFSMakeFifo |
		ll.AccessFSRemoveFile | ll.AccessFSRemoveDir
)

// pathRule allows something with a file, or with all that is in a directory.
type pathRule struct {
	path   string
	rights uint64
}

// restrictPaths puts this thread inside Landlock, as far as the kernel has it: everything is denied but for the rules.
// Nothing can be both written and executed. All threads at once, which libraries offer, takes a /proc of our own PID
// namespace.
func (o *order) restrictPaths() error {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil || abi == 0 {
		return nil // Reasons says why
	}
	rules, err := o.pathRules()
	if err != nil {
		return err
	}
	attr := o.ruleset(abi)
	fd, err := ll.LandlockCreateRuleset(&attr, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, r := range rules {
		if err := r.add(fd, attr.HandledAccessFS); err != nil {
			return fmt.Errorf("%s: %w", r.path, err)
		}
	}
	return ll.LandlockRestrictSelf(fd, 0)
}

// ruleset is all that a version of Landlock can deny (Linux 5.13 has version 1; see landlock(7)).
func (o *order) ruleset(abi int) ll.RulesetAttr {
	attr := ll.RulesetAttr{HandledAccessFS: ll.AccessFSRefer - 1} // the rights before it
	for _, added := range []struct {
		abi    int
		rights uint64
	}{{2, ll.AccessFSRefer}, {3, ll.AccessFSTruncate}, {5, ll.AccessFSIoctlDev}, {9, ll.AccessFSResolveUnix}} {
		if abi >= added.abi {
			attr.HandledAccessFS |= added.rights
		}
	}
	if abi >= 4 && !o.Network {
		attr.HandledAccessNet = ll.AccessNetBindTCP | ll.AccessNetConnectTCP
	}
	if abi >= 10 && !o.Network {
		attr.HandledAccessNet |= ll.AccessNetBindUDP | ll.AccessNetConnectSendUDP
	}
	if abi >= 6 {
		attr.Scoped = ll.ScopeAbstractUnixSocket | ll.ScopeSignal
	}
	return attr
}

func (r pathRule) add(ruleset int, handled uint64) error {
	fd, err := unix.Open(r.path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return ll.LandlockAddPathBeneathRule(ruleset, &ll.PathBeneathAttr{AllowedAccess: r.rights & handled, ParentFd: fd}, 0)
}

// pathRules returns the Landlock rules. System paths that do not exist on this distribution are left out; if Dir or one
// of Read is missing, that is an error.
func (o *order) pathRules() ([]pathRule, error) {
	var rules []pathRule
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
		rules = append(rules, pathRule{path, writeRights})
	}
	return append(rules, pathRule{"/dev/null", ll.AccessFSReadFile | ll.AccessFSWriteFile}), nil
}

func readRule(path string) (pathRule, error) {
	info, err := os.Stat(path)
	if err != nil {
		return pathRule{}, fmt.Errorf("may be read: %w", err)
	}
	if info.IsDir() {
		return pathRule{path, dirRights}, nil
	}
	return pathRule{path, readRights}, nil
}
