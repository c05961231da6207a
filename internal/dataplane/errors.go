// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Errors that callers distinguish.
var (
	ErrNoEntry    = errors.New("the object has neither kerb_egress nor kerb_ingress")
	ErrNoProgram  = errors.New("the data plane has no such program")
	ErrNoConstant = errors.New("the data plane has no such constant")
	ErrNotMounted = errors.New("no BPF file system")
	ErrLicense    = errors.New("licences cannot be mixed in one program")
	ErrSetsFull   = errors.New("the sets are too large")
	errNoPin      = errors.New("filters of the qdisc clsact have no pins")
	errTooComplex = errors.New("more than the verifier can follow")
)

// RejectedError reports that the verifier rejected a chain.
type RejectedError struct {
	Modules []string // members of the chain
	Plain   string   // one sentence for people
	Log     string   // the verifier's whole log
	Err     error
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("the kernel's verifier refuses %s: %s", strings.Join(e.Modules, ", "), e.Plain)
}

func (e *RejectedError) Unwrap() error { return e.Err }

// LabelsError is returned for a chain on XDP that needs more than one program: labels cannot be passed from one program
// to the next. The module works alone, and in a chain that fits into one program.
type LabelsError struct {
	Module string // the first one that labels packets
}

func (e *LabelsError) Error() string {
	return fmt.Sprintf("module %s: its labels would be lost, because this chain is too large for one XDP program: set "+
		"hook: tc, or remove modules from the chain", e.Module)
}

// explanations explain the verifier's most frequent messages. The first match is used.
var explanations = []struct {
	pattern *regexp.Regexp
	plain   string
}{
	{regexp.MustCompile(`invalid access to packet|outside of the packet`), "it reads packet bytes before checking that " +
		"they are there; use kerb_at() and test the pointer for NULL"},
	{regexp.MustCompile(
		`invalid mem access '(map_value_or_null|mem_or_null)'|R\d+ invalid mem access 'map_value_or_null'`),
		"it uses the result of a map lookup without testing it for NULL"},
	{regexp.MustCompile(`invalid access to map value`), "it reads or writes beyond the end of a map value; bound the " +
		"offset first"},
	{regexp.MustCompile(`invalid mem access 'scalar'|invalid mem access 'inv'`), "it uses a number as a pointer, for " +
		"example a packet pointer kept across a call that changes the packet"},
	{regexp.MustCompile(`!read_ok|invalid (indirect )?read from stack`), "it reads a variable that was never set"},
	{regexp.MustCompile(`infinite loop|back-edge`), loopWords},
	{regexp.MustCompile(`too large|The sequence of \d+ jumps|too complex`), loopWords},
	{regexp.MustCompile(`combined stack size`), "its functions need more than 512 bytes of stack together; move large " +
		"variables into a per-CPU map"},
	{regexp.MustCompile(`bpf_timer cannot be used for PREEMPT_RT`), "it uses a BPF timer, which this kernel with PREEMPT_RT " +
		"does not allow; see kerb_preemptible in <kerb/scratch.h>"},
	{regexp.MustCompile(`unknown func|program of this type cannot use helper|invalid func`),
		"it calls a helper that this kernel or hook does not offer"},
	{regexp.MustCompile(`cannot call GPL`), "it calls a helper that needs a GPL-compatible licence; see KERB_LICENSE"},
	{regexp.MustCompile(`unreachable insn`), "it contains instructions that can never run, usually after a function " +
		"that does not return"},
	{regexp.MustCompile(`At program exit the register R0`), "it returns something other than a verdict"},
	{regexp.MustCompile(`pointer arithmetic`), "it does arithmetic on a pointer that the verifier cannot bound"},
}

const loopWords = "it has a loop without a bound that the verifier can see, or is too large; count loops to a " +
	"constant, as in for (i = 0; i < 16; i++), or use bpf_loop() (Linux 5.17), or split the module"

// rejected wraps a load error. Errors that do not come from the verifier are returned unchanged.
func rejected(err error, modules []string) error {
	var verifier *ebpf.VerifierError
	// of push_stack() in the verifier; cilium/ebpf drops the log, which says "The sequence of 8193 jumps is too complex"
	if errors.Is(err, unix.EFAULT) {
		return &RejectedError{Modules: modules, Plain: loopWords + " (the kernel stopped after 8192 jumps: EFAULT)", Err: err}
	}
	if !errors.As(err, &verifier) {
		return err
	}
	log := boundLog(strings.Join(verifier.Log, "\n"))
	return &RejectedError{Modules: modules, Plain: plain(verifier.Log), Log: log, Err: err}
}

// maxLog limits the stored part of a log: its beginning, and its end with the error message.
const maxLog = 1 << 20

func boundLog(log string) string {
	if len(log) <= maxLog {
		return log
	}
	const begin = 64 << 10
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", log[:begin], len(log)-maxLog, log[len(log)-maxLog+begin:])
}

// plain finds the error message near the end of the log, and the source line that it refers to.
func plain(log []string) string {
	last, source := "", ""
	for _, line := range log {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, ";"):
			source = strings.TrimSpace(strings.TrimPrefix(line, ";"))
		case strings.HasPrefix(line, "cur state:") || strings.HasPrefix(line, "old state:"): // after "infinite loop detected"
		case line == "" || strings.HasPrefix(line, "processed ") || strings.HasPrefix(line, "verification time") ||
			strings.HasPrefix(line, "stack depth"):
		default:
			last = line
		}
	}
	text := last
	for _, w := range explanations {
		if w.pattern.MatchString(last) {
			text = w.plain + " (" + last + ")"
			break
		}
	}
	if source != "" {
		text += "; near: " + source
	}
	return text
}
