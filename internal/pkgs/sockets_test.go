// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

var socketsManifest = strings.Replace(goodManifest, "[xdp, tc]", "[sockets]", 1)

func TestManifestOfSockets(t *testing.T) {
	if _, err := ParseManifest("kerb.yaml", []byte(socketsManifest)); err != nil {
		t.Fatal(err)
	}
	for field, text := range map[string]string{
		"hooks":         strings.Replace(goodManifest, "[xdp, tc]", "[sockets, tc]", 1),
		"failurePolicy": socketsManifest + "failurePolicy: closed",
	} {
		if err := parseError(text); err == nil || err.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, more := range []string{"frags: true", "replies: true", "directions: {services: [egress]}",
		"directions: {interfaces: [egress]}",
		"dropReasons: {mine: 40}", "control: {command: [./serve]}\ncapabilities: [inject]"} {
		if err := parseError(socketsManifest + more); err == nil || err.Field != "hooks" {
			t.Errorf("%s: %v", more, err)
		}
	}
}

func parseError(text string) *apierrors.Invalid {
	_, err := ParseManifest("kerb.yaml", []byte(text))
	var wrong *apierrors.Invalid
	errors.As(err, &wrong)
	return wrong
}

const (
	socketsHeader = `
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "GPL";
#define MAP(name, kind, key_size_, value_size_) \
	struct { __uint(type, kind); __uint(max_entries, 64); __uint(key_size, key_size_); __uint(value_size, value_size_); } name SEC(".maps")
`
	socketsEntry = "SEC(\"sockops\") int all(struct bpf_sock_ops *ops) { return 1; }\n"
	socketsTable = "MAP(peers, BPF_MAP_TYPE_SOCKHASH, 8, 8);\n"
	socketsPass  = "SEC(\"sk_msg\") int pass(struct sk_msg_md *msg) { return SK_PASS; }\n"
	socketsDrain = "SEC(\"syscall\") int drain(void *ctx) { return 0; }\n"
	socketsAge   = "SEC(\"syscall\") int age(void *ctx) { return 0; }\n"
	socketsMaps  = "MAP(off, BPF_MAP_TYPE_ARRAY, 4, 4);\nMAP(drained, BPF_MAP_TYPE_HASH, 8, 1);\n"
)

func TestDataPlanesOnSockets(t *testing.T) {
	whole := socketsEntry + socketsTable + socketsPass + socketsDrain + socketsMaps
	for _, c := range []struct {
		name, manifest, source string
		want                   error
		what                   string
	}{
		{"whole", "", whole, nil, ""},
		{"only watching", "", socketsEntry, nil, ""},
		{"nothing on cgroups", "", socketsTable + socketsPass, ErrSocketsEntry, "neither all nor services"},
		{"another name", "", socketsEntry + "SEC(\"sockops\") int some(struct bpf_sock_ops *ops) { return 1; }",
			ErrSocketsEntry, "some"},
		{"packets", "", socketsEntry + "SEC(\"tc\") int see(struct __sk_buff *skb) { return 0; }", ErrSocketsEntry, "see"},
		{"two programs for messages", "", whole + "SEC(\"sk_msg\") int redirect(struct sk_msg_md *msg) { return SK_PASS; }",
			ErrSocketsEntry, "redirect"},
		{"no table", "", socketsEntry + socketsPass, ErrNoSocketMap, "pass"},
		{"two tables", "", whole + "MAP(more, BPF_MAP_TYPE_SOCKHASH, 8, 8);", ErrNoSocketMap, "pass"},
		{"drain without maps", "", socketsEntry + socketsTable + socketsPass + socketsDrain, ErrNoDrain, "drain"},
		{"drained by other keys", "", socketsEntry + socketsTable + socketsPass + socketsDrain +
			"MAP(off, BPF_MAP_TYPE_ARRAY, 4, 4);\nMAP(drained, BPF_MAP_TYPE_HASH, 4, 1);", ErrNoDrain, "drain"},
		{"ages", "", whole + socketsAge, nil, ""},
		{"age without drain", "", socketsEntry + socketsTable + socketsPass + socketsAge, ErrNoAge, "age"},
		{"guard of a package that is not built in", "", whole + "MAP(guarded, BPF_MAP_TYPE_ARRAY, 4, 4);\n" +
			"SEC(\"lsm/file_permission\") int guard(void *ctx) { return 0; }", ErrNoGuard, "guard"},
		{"off forgotten with each config", "maps: {config: ['off']}", whole, ErrNoDrain, "drain"},
		{"connections forgotten with each config", "maps: {config: [peers]}", whole, nil, "map peers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, ManifestName), socketsManifest+c.manifest)
			write(t, filepath.Join(dir, "sample.bpf.c"), socketsHeader+c.source)
			err := Build(t.Context(), dir, Options{Out: t.Output()})
			if c.want == nil && c.what == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var wrong *ObjectError
			if !errors.As(err, &wrong) || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.what) {
				t.Fatalf("got %v", err)
			}
		})
	}
}
