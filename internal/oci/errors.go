// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Errors that callers distinguish.
var (
	ErrUnsigned   = errors.New("not signed")
	ErrUnknownKey = errors.New("signed, but not by a key that this node trusts")
	ErrIdentity   = errors.New("signed for another name")
	ErrDigest     = errors.New("does not match its digest")
	ErrPlatform   = errors.New("not for this platform")
	ErrArchive    = errors.New("refused archive")
	ErrVersion    = errors.New("the tag is not the package's version")
	ErrDowngrade  = errors.New("older than before")
	ErrDenied     = errors.New("denied on this node")
	ErrForeign    = errors.New("neither a package of Kerb nor an image of eBPF programs")
)

// SignatureError says why a package is not trusted. Err is one of ErrUnsigned, ErrUnknownKey and ErrIdentity.
type SignatureError struct {
	Ref    string
	Keys   string // directory of the keys
	Detail string // additional information; may be empty
	Err    error
}

func (e *SignatureError) Error() string {
	text := fmt.Sprintf("%s is %v", e.Ref, e.Err)
	if e.Detail != "" {
		text += " (" + e.Detail + ")"
	}
	switch e.Err {
	case ErrUnsigned:
		return text + ": have it signed (kerb package sign), or pull it with --allow-unsigned if you trust it anyway"
	case ErrUnknownKey:
		return text + ": put the public key of its author into " + e.Keys + " as NAME.pub if you trust them"
	}
	return text + ": pull it with --identity if that is meant"
}

func (e *SignatureError) Unwrap() error { return e.Err }

// temporary reports whether err is caused by the connection to a registry or its load, so that the same request may
// succeed later.
func temporary(err error) bool {
	var answer *errcode.ErrorResponse
	if errors.As(err, &answer) {
		code := answer.StatusCode
		return code == http.StatusRequestTimeout || code == http.StatusTooManyRequests ||
			code >= http.StatusInternalServerError && code != http.StatusNotImplemented
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errStalled) ||
		errors.As(err, new(*url.Error)) || errors.As(err, new(*net.OpError))
}
