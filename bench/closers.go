// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"io"
	"slices"
)

// Closers undo what was set up, the newest first: labs that are still used cannot be removed. What an experiment builds
// embeds it. The zero value undoes nothing.
type Closers []func() error

// Later adds what Close is to do, before all that was added before.
func (c *Closers) Later(f func() error) { *c = append(*c, f) }

// Close undoes everything, also after an error, and once.
func (c *Closers) Close() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	*c = nil
	return errors.Join(errs...)
}

// CloseOn closes if there is an error, and returns it: for what was built in part only.
func (c *Closers) CloseOn(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, c.Close())
}

// CloseAll closes all of a list, also after an error.
func CloseAll[T io.Closer](all []T) error {
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
