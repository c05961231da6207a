// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers distinguish.
var (
	ErrUnknown  = errors.New("no such package")
	ErrNotBuilt = errors.New("the data plane is not compiled")
	ErrNoHook   = errors.New("the package does not run on this hook")

	ErrNotELF  = errors.New("not a whole ELF object for BPF")
	ErrNoEntry = errors.New("neither kerb_egress nor kerb_ingress is defined; use KERB_EGRESS(pkt) or " +
		"KERB_INGRESS(pkt)")
	ErrSignature    = errors.New("wrong signature; want int f(struct kerb_pkt *)")
	ErrNoBTF        = errors.New("no BTF type information; compile with -g and do not strip it")
	ErrNoMap        = errors.New("the data plane has no such map")
	ErrRingSize     = errors.New("a ring buffer takes a power of two of bytes, at least 4096")
	ErrNoConstant   = errors.New("the data plane has no such constant; declare it with KERB_CONFIG")
	ErrContract     = errors.New("built against another contract")
	ErrForeignEntry = errors.New("a program that is neither kerb_egress nor kerb_ingress; make it a static function")
)

// ObjectError is an error in a compiled data plane. Err wraps one of the sentinels above, or is a more specific error.
type ObjectError struct {
	File string // name of the object
	What string // the symbol, map or property; empty for the object as a whole
	Err  error
}

func (e *ObjectError) Error() string {
	if e.What == "" {
		return fmt.Sprintf("%s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.File, e.What, e.Err)
}

func (e *ObjectError) Unwrap() error { return e.Err }

// BudgetError is returned if the maps of a package exceed their memory budget.
type BudgetError struct {
	Package string
	Need    int64 // bytes
	Limit   int64 // bytes
	Largest string
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("package %s: its maps need %s of kernel memory, the budget is %s; the largest is %s",
		e.Package, FormatBytes(e.Need), FormatBytes(e.Limit), e.Largest)
}

// FeatureError lists what a package requires and this kernel lacks.
type FeatureError struct {
	Package string
	Missing []string
	Kernel  string
}

func (e *FeatureError) Error() string {
	return fmt.Sprintf("package %s needs %s, which kernel %s does not have", e.Package, strings.Join(e.Missing, ", "),
		e.Kernel)
}

// ToolError is returned by Build if a tool or header is not installed.
type ToolError struct {
	Tool   string // what is missing
	Remedy string // command that installs it
}

func (e *ToolError) Error() string {
	return fmt.Sprintf("%s is missing; install it with: %s", e.Tool, e.Remedy)
}

// CompileError is a failed compilation. The compiler's messages were written to Options.Out.
type CompileError struct {
	Source string
	Hook   string
	Err    error
}

func (e *CompileError) Error() string {
	return fmt.Sprintf("%s does not compile for %s: %v", e.Source, e.Hook, e.Err)
}

func (e *CompileError) Unwrap() error { return e.Err }
