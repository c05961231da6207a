// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/kerb-edge/kerb/sdk"
)

// newScaffold writes and builds the package that New makes.
func newScaffold(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sample")
	if err := New(dir, "sample", NewWatch, NewWithoutControl); err != nil {
		t.Fatal(err)
	}
	build(t, dir)
	return dir
}

var scaffolded fs.FS // what newScaffold gave the first test

// scaffold is a copy of one newScaffold for all tests.
func scaffold(t *testing.T) string {
	t.Helper()
	if scaffolded == nil {
		scaffolded = inMemory(t, newScaffold(t))
	}
	dir := filepath.Join(t.TempDir(), "sample")
	if err := os.CopyFS(dir, scaffolded); err != nil {
		t.Fatal(err)
	}
	return dir
}

// inMemory reads a directory without directories in it.
func inMemory(t *testing.T, dir string) fs.FS {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := fstest.MapFS{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = &fstest.MapFile{Data: data, Mode: 0o644}
	}
	return all
}

func build(t *testing.T, dir string) {
	t.Helper()
	if err := Build(t.Context(), dir, Options{Out: t.Output()}); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// edit replaces text in a file, and fails if the file does not contain it.
func edit(t *testing.T, path, old, new string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), old) {
		t.Fatalf("%s has no %q", path, old)
	}
	write(t, path, strings.Replace(string(text), old, new, 1))
}

func TestScaffoldBuildsAndOpens(t *testing.T) {
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{HookTC, HookXDP} {
		spec, err := p.Spec(hook)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Programs[EntryEgress] == nil || spec.Programs[EntryIngress] == nil || spec.Maps["packets"] == nil {
			t.Errorf("%s: %v", hook, spec)
		}
		spec.Maps["packets"].MaxEntries = 77
		if again, _ := p.Spec(hook); again.Maps["packets"].MaxEntries == 77 {
			t.Error("copies share state")
		}
	}
	if _, err := p.Spec("socket"); !errors.Is(err, ErrNoHook) {
		t.Errorf("got %v", err)
	}
}

func TestObjectsDoNotDependOnWhereTheyAreBuilt(t *testing.T) {
	a, err := Open(newScaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(newScaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest != b.Digest {
		t.Error("equal sources gave different packages")
	}
}

func TestDigestIsOverMeaning(t *testing.T) {
	dir := scaffold(t)
	digest := func() string {
		p, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest
	}
	before := digest()
	edit(t, filepath.Join(dir, ManifestName), "failurePolicy: open", "# a comment\nfailurePolicy: open")
	if digest() != before {
		t.Error("a comment changed the digest")
	}
	edit(t, filepath.Join(dir, ManifestName), "failurePolicy: open", "failurePolicy: closed")
	if digest() == before {
		t.Error("another failure policy has the same digest")
	}
}

func TestConstants(t *testing.T) {
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	have, err := p.Constants(map[string]any{"port": 53.0, "drop": true})
	if err != nil || have["port"] != uint16(53) || have["drop"] != true {
		t.Errorf("%v, %v", have, err)
	}
	for name, value := range map[string]any{"port": 65536, "drop": 1, "other": 1} {
		var wrong *sdk.ConfigError
		if _, err := p.Constants(map[string]any{name: value}); !errors.As(err, &wrong) || wrong.Field != name {
			t.Errorf("%s = %v: %v", name, value, err)
		}
	}
}

func TestInspect(t *testing.T) {
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.Inspect()
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Hooks) != 2 || len(in.Hooks[0].Functions) != 2 || in.Hooks[0].Functions[0].Instructions < 10 {
		t.Errorf("hooks: %+v", in.Hooks)
	}
	if len(in.Maps) != 1 || in.Maps[0].Role != "state" || in.Maps[0].Memory <= 0 || in.Memory < in.Maps[0].Memory {
		t.Errorf("maps: %+v, memory %d", in.Maps, in.Memory)
	}
	if got := p.DropReason(32); got != "blocked_port" {
		t.Errorf("reason 32 is %s", got)
	}
}

func TestBudget(t *testing.T) {
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckMemory("", nil); err != nil {
		t.Error(err)
	}
	var over *BudgetError
	if err := p.CheckMemory("", map[string]uint32{"packets": 1 << 20}); !errors.As(err, &over) || over.Limit != 64<<10 {
		t.Errorf("got %v", err)
	}
	if err := p.CheckMemory("1Gi", map[string]uint32{"packets": 1 << 20}); err != nil {
		t.Error(err)
	}
}

func TestFeaturesAreAttempted(t *testing.T) {
	needRoot(t)
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	p.Requires = []string{"kernel>=5.10", "lru_hash", "bpf_map_lookup_elem"}
	if err := p.CheckFeatures(); err != nil {
		t.Error(err)
	}
	p.Requires = []string{"kernel>=250.0", "ringbuf", "bpf_sk_fullsock"}
	p.Hooks = []string{HookXDP} // XDP has no bpf_sk_fullsock
	var lacks *FeatureError
	if err := p.CheckFeatures(); !errors.As(err, &lacks) ||
		strings.Join(lacks.Missing, " ") != "kernel>=250.0 bpf_sk_fullsock" {
		t.Errorf("got %v", err)
	}
}

// dataPlane is a source with the given body, for the faults below.
func dataPlane(body string) string {
	return "#include <stdbool.h>\n#include <kerb/module.h>\nKERB_LICENSE(\"Dual BSD/GPL\");\n" + body
}

const ownContext = `
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "GPL";
struct kerb_pkt { void *data; __u32 len; };
SEC("kerb/egress") int kerb_egress(struct kerb_pkt *pkt) { return pkt->len; }
`

// ownLayout is ownContext with the given members and attributes of struct kerb_pkt.
func ownLayout(members, attributes, result string) string {
	return strings.NewReplacer("void *data; __u32 len;", members, "};", "} "+attributes+";", "pkt->len", result,
		"<bpf/bpf_helpers.h>", "<bpf/bpf_helpers.h>\n#include <bpf/bpf_core_read.h>").Replace(ownContext)
}

func TestFaultyDataPlanesAreRefused(t *testing.T) {
	const relocated = "__attribute__((preserve_access_index))"
	const fine = "KERB_CONFIG(__u16, port, 1);\nKERB_EGRESS(pkt) { return pkt->len == port; }\n"
	for _, c := range []struct {
		name, manifest, source string
		want                   error
		what                   string
	}{
		{"fine", "configSchema: {properties: {port: {type: integer}}}", dataPlane(fine), nil, ""},
		{"no entry", "", dataPlane("int x;"), ErrNoEntry, ""},
		{"another entry", "", dataPlane(fine + "SEC(\"tc\") int other(struct __sk_buff *ctx) { return 0; }"), ErrForeignEntry,
			"other"},
		{"parameter", "", dataPlane("SEC(\"kerb/egress\") int kerb_egress(struct __sk_buff *ctx) { return ctx->len; }"),
			ErrSignature, "kerb_egress"},
		{"two parameters", "", dataPlane("SEC(\"kerb/egress\") int kerb_egress(struct kerb_pkt *p, int n) { return n; }"),
			ErrSignature, "kerb_egress"},
		{"result", "", dataPlane("SEC(\"kerb/egress\") void kerb_egress(struct kerb_pkt *p) { p->reason = 1; }"),
			ErrSignature, "kerb_egress"},
		{"other contract", "", ownContext, ErrContract, "kerb_egress"},
		{"another layout, relocated", "", ownLayout("__u32 len; void *data;", relocated, "pkt->len"), nil, ""},
		{"another layout, only looked for", "", ownLayout("__u32 len; void *data;", "",
			"bpf_core_field_exists(struct kerb_pkt, len) ? pkt->len : 0"), ErrContract, "kerb_egress"},
		{"a field of another size", "", ownLayout("void *data; __u64 len;", relocated, "pkt->len"), ErrContract,
			"kerb_egress"},
		{"a field that is not there", "", ownLayout("__u32 size;", relocated, "pkt->size"), ErrContract, "kerb_egress"},
		{"ring of odd size", "", dataPlane("KERB_EVENTS(seen, 5000);\n" + fine), ErrRingSize, "map seen"},
		{"ring below a page", "", dataPlane("KERB_EVENTS(seen, 2048);\n" + fine), ErrRingSize, "map seen"},
		{"map not there", "maps: {config: [rules]}", dataPlane(fine), ErrNoMap, "map rules"},
		{"constant not there", "configSchema: {properties: {size: {type: integer}}}", dataPlane(fine), ErrNoConstant,
			"config property size"},
		{"no constant", "configSchema: {properties: {size: {type: integer}}}",
			dataPlane("int size = 3;\nKERB_EGRESS(pkt) { return size++; }"), ErrNoConstant, "config property size"},
		{"constant of another kind", "configSchema: {properties: {port: {type: string}}}", dataPlane(fine), nil,
			"is of type string"},
		{"control plane", "control: builtin\nconfigSchema: {properties: {rules: {type: array}}}", dataPlane(fine), nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, ManifestName), goodManifest+c.manifest)
			write(t, filepath.Join(dir, "sample.bpf.c"), c.source)
			err := Build(t.Context(), dir, Options{Out: t.Output()})
			if c.want == nil && c.what == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var fault *ObjectError
			if !errors.As(err, &fault) || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.what) {
				t.Fatalf("got %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "sample.tc.o")); !errors.Is(err, fs.ErrNotExist) {
				t.Error("the object was written all the same")
			}
		})
	}
}

func TestBrokenObjectsAreRefused(t *testing.T) {
	dir := scaffold(t)
	object := filepath.Join(dir, "sample.tc.o")
	good, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("hello"), "cut short": good[:len(good)/2], "header only": good[:64],
	} {
		write(t, object, string(data))
		p, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Spec(HookTC); !errors.Is(err, ErrNotELF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Without BTF the contract of the object's code is unknown.
	write(t, object, string(bytes.ReplaceAll(good, []byte(".BTF"), []byte(".XXX"))))
	p, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Spec(HookTC); !errors.Is(err, ErrNoBTF) {
		t.Errorf("without BTF: %v", err)
	}
}

// Callers get copies of a data plane, which they may change. Types are shared, as no caller changes them.
func TestSpecIsFresh(t *testing.T) {
	p, err := Open(scaffold(t))
	if err != nil {
		t.Fatal(err)
	}
	one, err1 := p.Spec(HookTC)
	other, err2 := p.Spec(HookTC)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for name, m := range one.Maps {
		if other.Maps[name] == m {
			t.Errorf("two callers share the map %s", name)
		}
	}
	for name, prog := range one.Programs {
		if other.Programs[name] == prog || &other.Programs[name].Instructions[0] == &prog.Instructions[0] {
			t.Errorf("two callers share the program %s", name)
		}
	}
	if len(one.Maps)+len(one.Programs) == 0 || one.Types == nil || one.Types != other.Types {
		t.Errorf("%d maps, %d programs, Types %p and %p", len(one.Maps), len(one.Programs), one.Types, other.Types)
	}
}

func TestCompileErrorLeavesTheOldObjects(t *testing.T) {
	dir := scaffold(t)
	before, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, filepath.Join(dir, "sample.bpf.c"), "KERB_NEXT", "KERB_NOWHERE")
	var messages bytes.Buffer
	var refused *CompileError
	if err := Build(t.Context(), dir, Options{Out: &messages}); !errors.As(err, &refused) || refused.Hook != HookTC {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(messages.String(), "KERB_NOWHERE") {
		t.Errorf("the compiler's words were lost: %q", messages.String())
	}
	after, err := Open(dir)
	if err != nil || after.Digest != before.Digest {
		t.Errorf("the old package is gone: %v", err)
	}
}

func TestMissingTools(t *testing.T) {
	dir := scaffold(t)
	var missing *ToolError
	if err := Build(t.Context(), dir, Options{Clang: "/nonexistent/clang"}); !errors.As(err, &missing) ||
		!strings.Contains(missing.Remedy, "apt-get install") {
		t.Errorf("got %v", err)
	}
	old := filepath.Join(t.TempDir(), "clang")
	write(t, old, "#!/bin/sh\necho clang version 11.0.1\n")
	if err := os.Chmod(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Build(t.Context(), dir, Options{Clang: old}); !errors.As(err, &missing) ||
		!strings.Contains(err.Error(), "version 11") {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside.o")
	write(t, outside, "\x7fELF")
	for name, spoil := range map[string]func(object string) error{
		"a link out of the directory": func(object string) error { return os.Symlink(outside, object) },
		"a pipe":                      func(object string) error { return syscall.Mkfifo(object, 0o600) },
		"a directory":                 func(object string) error { return os.Mkdir(object, 0o700) },
		"a file too large": func(object string) error {
			return errors.Join(os.WriteFile(object, nil, 0o600), os.Truncate(object, maxObject+1))
		},
	} {
		dir := scaffold(t)
		object := filepath.Join(dir, "sample.tc.o")
		if err := errors.Join(os.Remove(object), spoil(object)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestOpenTellsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "is not a package: it has no kerb.yaml") {
		t.Errorf("got %v", err)
	}
	if err := New(filepath.Join(dir, "x"), "x", NewWatch, NewWithoutControl); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "x")); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("got %v", err)
	}
}

func TestNewKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "mine"), "text")
	if err := New(dir, "x", NewWatch, NewWithoutControl); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	if err := New(filepath.Join(dir, "y"), "No Name", NewWatch, NewWithoutControl); err == nil {
		t.Error("a name with a space was accepted")
	}
}

type control struct{ sdk.Control }

func TestCatalog(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"plain", "controlled", "lonely"} {
		if err := New(filepath.Join(root, name), name, NewWatch, NewWithoutControl); err != nil {
			t.Fatal(err)
		}
		if name != "plain" {
			edit(t, filepath.Join(root, name, ManifestName), "contract: 1", "contract: 1\ncontrol: builtin")
		}
		build(t, filepath.Join(root, name))
	}
	catalog := NewCatalog(os.DirFS(root), map[string]sdk.Control{"controlled": control{}})
	if n := len(catalog.Builtin()); n != 2 {
		t.Errorf("%d built-ins", n)
	}
	if err := catalog.Err(); err == nil || !strings.Contains(err.Error(), "lonely") {
		t.Errorf("the package without its control plane is not reported: %v", err)
	}
	if p, err := catalog.Get("plain"); err != nil || p.ControlPlane != nil || p.Source != SourceBuiltin {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := catalog.Get("controlled"); err != nil || p.ControlPlane == nil {
		t.Errorf("%+v, %v", p, err)
	}
	dir := filepath.Join(root, "plain")
	if p, err := catalog.Get(dir); err != nil || p.Source != dir {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := catalog.Get("absent"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
