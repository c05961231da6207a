// SPDX-License-Identifier: Apache-2.0

package resource_test

import (
	"fmt"
	"testing"

	"github.com/kerb-edge/kerb/internal/resource"
)

const (
	counter = `{"apiVersion":"kerb.dev/v1alpha1","kind":"Module","metadata":{"name":"count"},"spec":{"package":"counter","attach":{"services":"*"}}}`
	web     = `{"apiVersion":"kerb.dev/v1alpha1","kind":"Service","metadata":{"name":"web","labels":{"app":"web"}},"spec":{"netns":"/run/netns/web"}}`
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte(counter))
	f.Add([]byte("[" + counter + "," + web + "]"))
	f.Add([]byte("---\na: 1\n---\n- b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := resource.Decode(data)
		if err != nil {
			return
		}
		for _, m := range resource.Module.Of(all) {
			if m.Status != nil || m.Metadata.Name == "" || m.Spec.Hook == "" {
				t.Errorf("decoded %+v", m)
			}
		}
	})
}

func ExampleDecode() {
	_, err := resource.Decode([]byte("apiVersion: kerb.dev/v1alpha1\nkind: Service\nmetadata: {name: web}\nspec: {nets: " +
		"/run/netns/web}\n"))
	fmt.Println(err)
	// Output: Service web: spec.nets: unknown field; known are interface, netns, pid; did you mean netns?
}
