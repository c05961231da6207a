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
	one := Attachment("net", "c1", "eth0")
	if one == Attachment("net", "c2", "eth0") || one == Attachment("net", "c1", "net1") ||
		!strings.HasPrefix(one, Network("net")+".") || len(one) > maxLabelValue {
		t.Errorf("attachment %q", one)
	}
}

var serviceName = regexp.MustCompile(`^p-[0-9a-f]{20}$`)

func TestAdmit(t *testing.T) {
	pod := Pod{"shop", "web-0", "u"}
	pending := PodLabels(pod, "n.a")
	if !IsPending(pending) {
		t.Errorf("%v", pending)
	}
	own := map[string]string{"app": "web", LabelNamespace: "kube-system", LabelPending: "true", LabelPrefix + "x": "y"}
	want := map[string]string{"app": "web", LabelNamespace: "shop", LabelPod: "web-0", LabelAttachment: "n.a"}
	if d := cmp.Diff(want, Admit(pending, own)); d != "" {
		t.Error(d)
	}
	if _, ok := PodLabels(Pod{Namespace: "a", Name: strings.Repeat("x", 64)}, "n.a")[LabelPod]; ok {
		t.Error("a name of 64 characters cannot be the value of a label")
	}
}
