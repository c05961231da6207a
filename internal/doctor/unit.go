// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

const (
	unitName  = "kerb.service"
	dropInFor = "systemctl edit kerb, and add: [Service] "
)

// unitCalls are the system calls that confine control planes, which older system call groups of systemd lack.
var unitCalls = []string{"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}

// unit reads what systemd allows the agent, which is not what it allows the shell that the doctor runs in.
func unit(Options) []Check {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return nil // another init
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemctl", "show", unitName, "-p", "LoadState", "-p", "SystemCallFilter", "-p",
		"DelegateControllers").Output()
	if err != nil {
		return []Check{bad(Warn, "unit", "systemctl status "+unitName, "cannot read the limits of %s: %v", unitName, err)}
	}
	return judgeUnit(properties(string(out)))
}

func properties(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		out[name] = value
	}
	return out
}

// judgeUnit examines the unit as loaded. A node without the unit runs the agent in another way.
func judgeUnit(unit map[string]string) []Check {
	if unit["LoadState"] != "loaded" {
		return nil
	}
	return []Check{judgeCalls(unit["SystemCallFilter"]), judgeDelegation(unit["DelegateControllers"])}
}

// judgeCalls checks SystemCallFilter of the unit. Without seccomp no control plane can start, which is a failure;
// without the others they run without Landlock, which is a warning.
func judgeCalls(filter string) Check {
	const name = "unit system calls"
	if !allows(filter, "seccomp") {
		return bad(Fail, name, dropInFor+"SystemCallFilter="+strings.Join(append([]string{"seccomp"}, unitCalls...), " "),
			"SystemCallFilter of %s lacks seccomp: control planes cannot start", unitName)
	}
	missing := slices.DeleteFunc(slices.Clone(unitCalls), func(call string) bool { return allows(filter, call) })
	if len(missing) > 0 {
		return bad(Warn, name, dropInFor+"SystemCallFilter="+strings.Join(missing, " "),
			"SystemCallFilter of %s lacks %s: control planes run without Landlock and can read all world-readable files",
			unitName, strings.Join(missing, ", "))
	}
	return ok(name, "%s may confine control planes", unitName)
}

// allows reads the list as systemctl prints it: names, or ~ and the names that are denied; empty is no filter.
func allows(filter, call string) bool {
	denied, isDenyList := strings.CutPrefix(filter, "~")
	if filter == "" || isDenyList {
		return !slices.ContainsFunc(strings.Fields(denied), func(f string) bool {
			name, _, _ := strings.Cut(f, ":")
			return name == call
		})
	}
	return slices.Contains(strings.Fields(filter), call)
}

func judgeDelegation(controllers string) Check {
	const name = "unit delegation"
	if !slices.Contains(strings.Fields(controllers), "memory") {
		return bad(Warn, name, dropInFor+"Delegate=memory pids",
			"%s has no delegated memory controller: the memory of control planes is sampled, not limited by a cgroup", unitName)
	}
	return ok(name, "%s may limit control planes by cgroups", unitName)
}
