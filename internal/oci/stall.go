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

// errOnNode keeps names of registries, and where they redirect to, from reaching programs that trust their own node.
var errOnNode = errors.New("the name of the registry, or where it redirects to, has an address of the node itself")

// maxHeaders are the most bytes of the headers of an answer: some of them end up in errors.
const maxHeaders = 64 << 10

// registryReader opens a registry to read from. Its connections are closed by the closer.
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

const dialTimeout = 30 * time.Second // as of http.DefaultTransport

// hasProxy reports whether the operator has all requests go to a proxy, which may be on the node.
func hasProxy() bool {
	proxies := httpproxy.FromEnvironment()
	return proxies.HTTPProxy != "" || proxies.HTTPSProxy != ""
}

// refuseOwn refuses connections to addresses that are the node's own whatever its network is, and to those of the link,
// where clouds have their metadata. It is for net.Dialer: names are resolved.
func refuseOwn(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if ip := to.Addr().Unmap(); err != nil || ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() {
		return errOnNode
	}
	return nil
}

// stallTransport aborts requests whose answer stalls. A slow registry that keeps sending is waited for.
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

// watched is the body of an answer.
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

// stalled says why a request was ended.
func stalled(ctx context.Context, err error) error {
	if err != nil && err != io.EOF && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// Temporary reports whether a pull may succeed later although nothing changes in the registry: it, or the network, did
// not answer, or the node's disk is full. Otherwise the registry has no such package, or the node does not accept it.
func Temporary(err error) bool {
	return temporary(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*fs.PathError))
}

// Explain returns the error of a pull for a client of the API: in the same words as long as the cause is the same, on
// all nodes. Ports, names of temporary files and what registries write differ each time.
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
		return err // it names the reference
	}
	return fmt.Errorf("%s: %w", ref, err)
}
