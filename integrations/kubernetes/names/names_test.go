// SPDX-License-Identifier: Apache-2.0

package names

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A pod has the same Service in every program that knows its UID, or else its namespace and name.
func TestIdentities(t *testing.T) {
	if got := (Pod{Namespace: "a", Name: strings.Repeat("x", 253)}).Service(); !serviceName.MatchString(got) {
		t.Errorf("the Service of a pod without UID is %q", got)
	}
	if got := (Pod{UID: "abc"}).Service(); got != "p-ba7816bf8f01cfea4141" { // FIPS 180-4 has the SHA-256 of "abc"
		t.Errorf("the Service of a pod with UID abc is %q", got)
	}
	for service, ok := range map[string]bool{"p-ba7816bf8f01cfea4141": true, "p-ba7816bf8f01cfea414": false,
		"p-ba7816bf8f01cfea414142": false, "p-ba7816bf8f01cfea414x": false, "ba7816bf8f01cfea4141": false, "web": false} {
		if d, is := DigestOf(service); is != ok || ok && d != (Pod{UID: "abc"}).Digest() {
			t.Errorf("the digest of %q is %x, %t", service, d, is)
		}
	}
	a := Attachment{"net", "c1", "eth0"}
	for other, same := range map[Attachment]bool{a: false, {"net", "c1", "net1"}: true, {"net", "c2", "eth0"}: false} {
		if a.SameSandbox(other.String()) != same || !OfNetwork(other.String(), "net") || OfNetwork(other.String(), "ne") {
			t.Errorf("%v and %v", a, other)
		}
	}
	for _, of := range []Attachment{a, Adopted("c1")} {
		adopted := of == Adopted("c1")
		if !a.Applied(of.String()) || IsAdopted(of.String()) != adopted || OfNetwork(of.String(), "net") == adopted {
			t.Errorf("%v and %v", a, of)
		}
	}
	for _, other := range []Attachment{Adopted("c2"), {"net", "c2", "eth0"}, {"net", "c1", "net1"},
		{"other", "c1", "eth0"}} {
		if a.Applied(other.String()) {
			t.Errorf("%v takes %v for its own", a, other)
		}
	}
	if len(a.String()) > maxLabelValue {
		t.Errorf("%q is no value of a label", a)
	}
}

var serviceName = regexp.MustCompile(`^p-[0-9a-f]{20}$`)

func TestAdmit(t *testing.T) {
	pod := Pod{"shop", "web-0", "u"}
	a := Attachment{"net", "c1", "eth0"}
	pending := PodLabels(pod, a)
	if !IsPending(pending) {
		t.Errorf("%v", pending)
	}
	own := map[string]string{"app": "web", LabelNamespace: "kube-system", LabelPending: "true", LabelPrefix + "x": "y"}
	want := map[string]string{"app": "web", LabelNamespace: "shop", LabelPod: "web-0", LabelAttachment: a.String()}
	if d := cmp.Diff(want, Admit(pending, own)); d != "" {
		t.Error(d)
	}
	if _, ok := PodLabels(Pod{Namespace: "a", Name: strings.Repeat("x", 64)}, a)[LabelPod]; ok {
		t.Error("a name of 64 characters cannot be the value of a label")
	}
}

// Modules of namespaces have names of their own on the node, which the agent accepts and no ClusterModule may have.
func TestModuleNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	seen := map[string]string{}
	for _, of := range [][2]string{{"a", "b-c"}, {"a-b", "c"}, {"a", "b"}, {"b", "a"}, {long, long},
		{long, "b"}, {"b", long}, {strings.Repeat("a", 39), "b"}} {
		name := Module(of[0], of[1])
		if other, ok := seen[name]; ok || len(name) > 63 || !regexp.MustCompile(ReservedModules).MatchString(name) {
			t.Errorf("Module(%s) = %s, %d characters; also that of %q", of, name, len(name), other)
		}
		seen[name] = of[0] + "/" + of[1]
	}
}
