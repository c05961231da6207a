// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// Broker configures the connection to the cluster's MQTT broker, whose address is in the registration.
type Broker struct {
	Port         int    `json:"port,omitempty"` // default 10003
	TLS          bool   `json:"tls,omitempty"`  // implied by CA or Certificate
	CA           string `json:"ca,omitempty"`
	Certificate  string `json:"certificate,omitempty"`
	Key          string `json:"key,omitempty"`
	Username     string `json:"username,omitempty"`
	PasswordFile string `json:"passwordFile,omitempty"`
}

// Default ports of Oakestra.
const defaultBrokerPort, defaultTunnelPort = 10003, 50103

// netcfg is NetManager's configuration file. All values are strings.
type netcfg struct {
	Address     string `json:"NodePublicAddress"` // 0.0.0.0: determine it from the route to the cluster
	Port        string `json:"NodePublicPort"`
	Cluster     string `json:"ClusterUrl"` // for versions of NodeEngine that do not send it
	BrokerPort  string `json:"ClusterMqttPort"`
	Certificate string `json:"MqttCert"`
	Key         string `json:"MqttKey"`
}

// tuncfg is NetManager's configuration of its tunnel. Its address ranges are ignored: those of IPv6, as shipped, do not
// contain the addresses that the root assigns.
type tuncfg struct {
	Port int `json:"TunnelPort"`
	MTU  int `json:"MTUsize"`
}

// defaultMTU leaves space for the headers of a tunnel between nodes, like Oakestra's default. minMTU is the minimum of
// IPv6.
const defaultMTU, minMTU, maxMTU = 1450, 1280, 65535

const anyAddress = "0.0.0.0"

// withNetcfg fills in unset options: from NetManager's file, if it exists, then from Oakestra's defaults.
func (o Options) withNetcfg() (Options, error) {
	var n netcfg
	var t tuncfg
	file, tunnel := filepath.Join(o.NetManager, "netcfg.json"), filepath.Join(o.NetManager, "tuncfg.json")
	err := errors.Join(readIfExists(file, &n), readIfExists(tunnel, &t))
	if err != nil {
		return o, err
	}
	if t.Port < 0 || t.Port > 65535 {
		return o, fmt.Errorf("%s: TunnelPort: %d is not a port", tunnel, t.Port)
	}
	if o.MTU = cmp.Or(t.MTU, defaultMTU); o.MTU < minMTU || o.MTU > maxMTU {
		return o, fmt.Errorf("%s: MTUsize: %d is not from %d to %d", tunnel, o.MTU, minMTU, maxMTU)
	}
	for _, f := range []struct {
		field, text string
		to          *int
		otherwise   int
	}{{"NodePublicPort", n.Port, &o.Port, cmp.Or(t.Port, defaultTunnelPort)},
		{"ClusterMqttPort", n.BrokerPort, &o.Broker.Port, defaultBrokerPort}} {
		if *f.to, err = port16(*f.to, f.text, f.otherwise); err != nil {
			return o, fmt.Errorf("%s: %s: %w", file, f.field, err)
		}
	}
	if o.Address == "" && n.Address != anyAddress {
		o.Address = n.Address
	}
	if _, err := netip.ParseAddr(o.Address); o.Address != "" && err != nil {
		return o, fmt.Errorf("%s: NodePublicAddress: %q is not an address", file, o.Address)
	}
	if n.Cluster != anyAddress {
		o.Cluster = n.Cluster
	}
	if o.Broker.Certificate == "" {
		o.Broker.Certificate, o.Broker.Key = n.Certificate, n.Key
	}
	return o, nil
}

// readIfExists decodes a file if it exists.
func readIfExists(path string, v any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; correct it or remove it", path, err)
	}
	return nil
}

// port16 returns set, or the port in text, or a default.
func port16(set int, text string, otherwise int) (int, error) {
	if set != 0 || text == "" {
		return cmp.Or(set, otherwise), nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is not a port", text)
	}
	return int(port), nil
}

// url returns the URL of a cluster's broker.
func (b Broker) url(cluster string) string {
	scheme := "tcp"
	if b.TLS || b.CA != "" || b.Certificate != "" {
		scheme = "ssl"
	}
	return scheme + "://" + net.JoinHostPort(strings.Trim(cluster, "[]"), fmt.Sprint(b.Port))
}

const (
	connectLimit = 5 * time.Second
	ackTimeout   = 5 * time.Second // timeout of the broker's acknowledgement of a subscription
	keepAlive    = 10 * time.Second
)

// options returns the options of one connection. It reads files for each connection, since certificates are renewed.
func (b Broker) options(cluster, worker string) (*mqtt.ClientOptions, error) {
	opts := mqtt.NewClientOptions().AddBroker(b.url(cluster)).SetClientID(worker).SetProtocolVersion(4).
		SetCleanSession(true).SetAutoReconnect(false).SetConnectRetry(false).SetConnectTimeout(connectLimit).
		SetKeepAlive(keepAlive).SetPingTimeout(3 * time.Second).SetWriteTimeout(2 * time.Second)
	if b.Username != "" {
		opts.SetUsername(b.Username)
	}
	if b.PasswordFile != "" {
		password, err := os.ReadFile(b.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("oakestra.broker.passwordFile: %w", err)
		}
		opts.SetPassword(strings.TrimRight(string(password), "\r\n"))
	}
	secure, err := b.tls()
	if err != nil {
		return nil, err
	}
	return opts.SetTLSConfig(secure), nil
}

// tls returns the TLS configuration for the broker, TLS 1.2 and later. Without CA the system's authorities apply;
// Certificate and Key are for mutual TLS.
func (b Broker) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if b.CA != "" {
		pem, err := os.ReadFile(b.CA)
		if err != nil {
			return nil, fmt.Errorf("oakestra.broker.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("oakestra.broker.ca: %s has no certificate", b.CA)
		}
	}
	if b.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(b.Certificate, b.Key)
		if err != nil {
			return nil, fmt.Errorf("oakestra.broker.certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// sourceAddress returns the source address of packets from this node to the cluster, which is also the address by which
// other nodes reach it.
func sourceAddress(ctx context.Context, cluster string, port int) (netip.Addr, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", net.JoinHostPort(strings.Trim(cluster, "[]"), fmt.Sprint(port))) // sends no packet
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	return local.Addr().Unmap().WithZone(""), err
}
