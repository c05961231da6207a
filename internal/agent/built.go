// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/kerb-edge/kerb/internal/pkgs"
)

// checkBuilt returns an error that names the data planes which this binary lacks. `go build` embeds the objects that
// `make bpf` has compiled; in a fresh clone there are none, and it succeeds all the same.
func checkBuilt(objects fs.FS) error {
	var missing []string
	for _, name := range []string{"bpf/chain.tc.o", "bpf/chain.xdp.o", "bpf/chain.xdp-frags.o"} {
		if _, err := fs.Stat(objects, name); err != nil {
			missing = append(missing, name)
		}
	}
	manifests, err := fs.Glob(objects, "modules/*/"+pkgs.ManifestName)
	if err != nil {
		return err
	}
	if len(manifests) == 0 {
		missing = append(missing, "modules")
	}
	for _, manifest := range manifests {
		if compiled, _ := fs.Glob(objects, path.Dir(manifest)+"/*.o"); len(compiled) == 0 {
			missing = append(missing, path.Dir(manifest))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New("this kerb was built without data planes (" + strings.Join(missing, ", ") +
		"): run `make build` in its source directory, which compiles them, and use the kerb that it makes")
}
