// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"io"
	"slices"
)

// Closers closes resources in reverse order, since labs that are still in use cannot be removed. Experiments embed it
// in their setups. The zero value is empty.
type Closers []func() error

// Later adds a function that Close calls before those added earlier.
func (c *Closers) Later(f func() error) { *c = append(*c, f) }

// Close calls all functions once, also after errors.
func (c *Closers) Close() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	*c = nil
	return errors.Join(errs...)
}

// CloseOn calls Close if err is not nil, to clean up after a partial setup, and returns err.
func (c *Closers) CloseOn(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, c.Close())
}

// CloseAll closes all elements of a list, also after errors.
func CloseAll[T io.Closer](all []T) error {
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
