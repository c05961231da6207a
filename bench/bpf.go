// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ErrNotBuilt is wrapped when the tool was built without the compiled data
// planes of its references.
var ErrNotBuilt = errors.New("not built in; run `make bpf`, then build again")

// Object reads a compiled data plane out of a package's embedded files.
func Object(files fs.FS, name string) (*ebpf.CollectionSpec, error) {
	data, err := fs.ReadFile(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotBuilt)
	}
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return spec, nil
}

// HaveTCX tells why TCX cannot be used: it came with Linux 6.6.
func HaveTCX() error {
	const loopback = 1 // in every namespace; it is asked, not changed
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err
}
