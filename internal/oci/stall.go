// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
	"oras.land/oras-go/v2/registry/remote/retry"
)

// errStalled ends a request to a registry that has sent nothing for Transport.Stall.
var errStalled = errors.New("the registry has stopped sending")

// errOnNode is returned if a registry's name or a redirect has an address of the node itself, where programs may trust
// local clients (SSRF).
var errOnNode = errors.New("the name of the registry, or where it redirects to, has an address of the node itself")

// maxHeaders limits the headers of a response, in bytes, since errors contain some of them.
const maxHeaders = 64 << 10

// registryReader opens a registry for reading. The returned function closes its connections.
func (t Transport) registryReader(ref Reference) (oras.ReadOnlyGraphTarget, func(), error) {
	r, err := t.repository(ref)
	if err != nil {
		return nil, nil, err
	}
	if t.Stall == 0 {
		return r, func() {}, nil
	}
	connections := http.DefaultTransport.(*http.Transport).Clone()
	connections.MaxResponseHeaderBytes = maxHeaders
	if !ref.loopback() && !hasProxy() {
		connections.DialContext = (&net.Dialer{Timeout: dialTimeout, Control: refuseOwn}).DialContext
	}
	r.Client.(*auth.Client).Client = &http.Client{Transport: retry.NewTransport(stallTransport{connections, t.Stall})}
	return r, connections.CloseIdleConnections, nil
}

const dialTimeout = 30 * time.Second // as in http.DefaultTransport

// hasProxy reports whether the operator has configured a proxy, which may be on the node.
func hasProxy() bool {
	proxies := httpproxy.FromEnvironment()
	return proxies.HTTPProxy != "" || proxies.HTTPSProxy != ""
}

// refuseOwn is a net.Dialer.Control that rejects addresses that always belong to the node, such as loopback, and
// link-local ones, such as the metadata service of clouds. It sees resolved addresses.
func refuseOwn(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if ip := to.Addr().Unmap(); err != nil || ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() {
		return errOnNode
	}
	return nil
}

// stallTransport aborts requests whose response stalls. It does not limit registries that are slow but keep sending.
type stallTransport struct {
	base  http.RoundTripper
	limit time.Duration
}

// RoundTrip implements http.RoundTripper.
func (i stallTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(i.limit, func() { cancel(errStalled) })
	answer, err := i.base.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		err = stalled(ctx, err)
		cancel(nil)
		return nil, err
	}
	answer.Body = &watched{answer.Body, ctx, cancel, timer, i.limit}
	return answer, nil
}

// watched is the body of a response that is monitored for stalls.
type watched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.timer.Reset(w.limit)
	}
	return n, stalled(w.ctx, err)
}

func (w *watched) Close() error {
	w.timer.Stop()
	w.cancel(nil)
	return w.ReadCloser.Close()
}

// stalled returns errStalled if a request was aborted for that reason, and otherwise err.
func stalled(ctx context.Context, err error) error {
	if err != nil && err != io.EOF && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// Temporary reports whether a pull may succeed later without changes in the registry: the registry or the network
// failed, or the node's disk is full. Otherwise the registry has no such package, or the node rejects it.
func Temporary(err error) bool {
	return temporary(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*fs.PathError))
}

// Explain converts the error of a pull to a message that is the same on all nodes and at each attempt as long as the
// cause is the same. The original may contain ports, names of temporary files and text of registries, which vary.
func Explain(err error, ref Reference, credentials string) error {
	var answer *errcode.ErrorResponse
	var host *net.DNSError
	var certificate x509.CertificateInvalidError
	var number syscall.Errno
	var network net.Error
	switch {
	case errors.As(err, &answer):
		err = fmt.Errorf("the registry answers %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
		if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
			err = fmt.Errorf("%w: write credentials for it to %s of the node, as docker login does, or correct the name", err,
				credentials)
		}
	case errors.Is(err, errStalled):
		err = errStalled
	case errors.Is(err, errOnNode):
		err = errOnNode
	case errors.As(err, &host) && host.IsNotFound:
		err = errors.New("its host does not exist")
	case errors.As(err, &host):
		err = errors.New("its host is not resolved: no DNS server answers")
	case errors.As(err, &certificate) && certificate.Reason == x509.Expired:
		err = errors.New("the certificate of the registry has expired, or is not valid yet: check the node's clock")
	case errors.As(err, &number):
		err = number
	case errors.As(err, &network) && network.Timeout():
		err = errors.New("the registry does not answer in time")
	default:
		return err // it contains the reference
	}
	return fmt.Errorf("%s: %w", ref, err)
}
