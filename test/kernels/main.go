// SPDX-License-Identifier: Apache-2.0

// Command kernels runs Go test packages on a matrix of Debian kernels: it downloads each kernel, puts the static test
// binaries into an initramfs, boots it in an emulated machine without a network, and prints the results. See README.md.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed packages.txt
var hostPackages string

const (
	defaultKernels = "5.10,6.1,6.1-rt,6.12,newest"
	defaultTests   = "./test/kernels/smoke,./internal/dataplane/...,./internal/sockprobe,./modules/..."
)

// options are the options on the command line.
type options struct {
	arch                    arch
	kernels, tests, modules []string
	add                     []string      // programs with their libraries, and directories, of this machine
	timeout, testTimeout    time.Duration // of one machine; of one test binary in it
	run, skip               string        // -test.run and -test.skip of every binary
	kmod                    string        // directory of a kernel module to build for each kernel
	cache                   string
	memory                  string // in QEMU's notation
	mirrors                 mirrors
}

func main() {
	opts, err := parseFlags()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	results, err := run(ctx, opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
	if !report(os.Stdout, results) {
		os.Exit(1)
	}
}

func parseFlags() (options, error) {
	var o options
	arch := flag.String("arch", runtime.GOARCH, "architecture of the machines, amd64 or arm64")
	kernels := flag.String("kernels", defaultKernels, "kernels, comma-separated: SERIES or newest, with -rt, -generic "+
		"or -16k (pages of 16 KiB, arm64) for another flavour than cloud")
	tests := flag.String("pkgs", defaultTests, "Go package patterns, comma-separated; packages without tests, and "+
		"commands that only a ... matches, are left out")
	modules := flag.String("modules", "", "further kernel modules to load, comma-separated")
	add := flag.String("add", "", "programs of this machine's architecture, put with their libraries, and directories, "+
		"comma-separated, into the machine")
	flag.StringVar(&o.kmod, "kmod", "", "directory with a kernel module of this repository, built for each kernel; its "+
		"tests find the .ko in their directory")
	flag.DurationVar(&o.timeout, "timeout", 1800*time.Second, "limit for one boot of one kernel, all packages together")
	flag.DurationVar(&o.testTimeout, "pkg-timeout", 900*time.Second, "limit for one test binary in the machine")
	flag.StringVar(&o.run, "run", "", "run only tests that match this expression")
	flag.StringVar(&o.skip, "skip", "", "leave out tests that match this expression")
	flag.StringVar(&o.cache, "cache", defaultCache(), "directory for kernels, package lists and logs, kept between runs")
	flag.StringVar(&o.memory, "memory", "2G", "memory of the machine")
	flag.StringVar(&o.mirrors.main, "mirror", "", "URI of a Debian mirror (default: the one in this machine's "+
		"apt sources)")
	flag.StringVar(&o.mirrors.security, "security-mirror", "", "URI of a Debian security mirror (default: likewise)")
	list := flag.Bool("print-packages", false, "print the Debian packages this machine needs and exit")
	flag.Parse()
	if *list {
		fmt.Print(hostPackages)
		os.Exit(0)
	}
	o.kernels, o.tests, o.modules, o.add = fields(*kernels), fields(*tests), fields(*modules), fields(*add)
	var err error
	if o.arch, err = findArch(*arch); err == nil && o.kmod != "" && !o.arch.native() {
		err = fmt.Errorf("-kmod builds for %s only: leave out -arch %s", runtime.GOARCH, *arch)
	}
	return o, err
}

// fields splits text at commas and drops empty fields.
func fields(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "kerb", "kernels")
}

// run builds the tests once and then runs the kernels one after the other. A kernel that cannot be fetched or does not
// respond is a result; an error affects the whole run.
func run(ctx context.Context, opts options) ([]kernelResult, error) {
	specs, err := parseSpecs(opts.kernels, opts.arch)
	if err != nil {
		return nil, err
	}
	if err := checkTools(opts); err != nil {
		return nil, err
	}
	unlock, err := lockDir(opts.cache)
	if err != nil {
		return nil, err
	}
	defer unlock()
	opts.cache = opts.arch.cache(opts.cache)
	work := filepath.Join(opts.cache, "run") // may be left over from a killed run
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(work, 0o755)); err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	return runAll(ctx, opts, specs, work)
}

func runAll(ctx context.Context, opts options, specs []spec, work string) ([]kernelResult, error) {
	tests, err := buildTests(ctx, work, opts.arch, opts.tests)
	if err != nil {
		return nil, err
	}
	debian, err := openArchive(ctx, filepath.Join(opts.cache, "apt"), opts.mirrors, opts.arch)
	if err != nil {
		return nil, err
	}
	tools, err := fetchTools(ctx, debian, filepath.Join(opts.cache, "tools"))
	if err != nil {
		return nil, fmt.Errorf("programs for the machine: %w", err)
	}
	nonce := newNonce()
	base := filepath.Join(work, "base.cpio")
	plan := guestPlan{tests, opts.add, nonce, opts.arch.port, opts.testTimeout, opts.run, opts.skip}
	if err := buildBase(ctx, base, tools, opts.arch.triplet, plan); err != nil {
		return nil, fmt.Errorf("build the initramfs: %w", err)
	}
	var results []kernelResult
	for _, s := range specs {
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		m := machine{arch: opts.arch, dir: work, base: base, nonce: nonce}
		results = append(results, runKernel(ctx, opts, debian, s, m, tests))
	}
	return results, nil
}

// runKernel fetches one kernel, boots it, and boots it a second time if the machine hung.
func runKernel(ctx context.Context, opts options, debian *archive, s spec, m machine, tests []testBinary) kernelResult {
	result := kernelResult{spec: s.name}
	k, err := fetchKernel(ctx, debian, filepath.Join(opts.cache, "kernels"), s)
	if err != nil {
		result.err = fmt.Errorf("fetch the kernel: %w", err)
		return result
	}
	result.release = k.release
	m.kernel, m.memory, m.timeout = k, opts.memory, opts.timeout
	if opts.kmod != "" {
		if m.built, err = buildFor(ctx, opts, debian, s, m); err != nil {
			result.err = fmt.Errorf("build %s: %w", opts.kmod, err)
			return result
		}
	}
	if m.initrd, err = buildInitrd(ctx, m, opts); err != nil {
		result.err = fmt.Errorf("build the initramfs: %w", err)
		return result
	}
	m.logs = filepath.Join(opts.cache, "logs", s.name+"-"+opts.arch.name)
	progress("%s: boot %s", s.name, k.release)
	start := time.Now()
	for result.boots = 1; ; result.boots++ {
		result.log, result.err = m.boot(ctx, result.boots)
		if !isHung(result.err) || result.boots == 2 || ctx.Err() != nil {
			break
		}
		progress("%s: %v; boot again", s.name, result.err)
	}
	result.seconds = time.Since(start).Seconds()
	result.consoles = m.logs
	result.expect(tests)
	progress("%s: %s in %.0f s", s.name, result.verdict(), result.seconds)
	return result
}

// buildFor builds the module of option -kmod.
func buildFor(ctx context.Context, opts options, debian *archive, s spec, m machine) ([]string, error) {
	headers, err := fetchHeaders(ctx, debian, filepath.Join(opts.cache, "headers"), s, m.kernel)
	if err != nil {
		return nil, err
	}
	progress("%s: build %s", s.name, opts.kmod)
	return buildKmod(ctx, m.dir, opts.kmod, headers)
}

// lockDir creates dir and locks it, so that a second run does not boot a machine at the same time.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		progress("wait for another run that uses %s", dir)
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
	return func() { f.Close() }, nil
}

// progressTo is the writer of progress messages; stdout is for the results.
var progressTo io.Writer = os.Stderr

func progress(format string, args ...any) {
	fmt.Fprintf(progressTo, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05")}, args...)...)
}
