// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
)

func load(t *testing.T, text string) (config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kerb.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path, true)
	if err != nil {
		return c, err
	}
	return c, c.Check()
}

func TestOakestraIsOffUnlessAskedFor(t *testing.T) {
	if c, err := load(t, "log: {format: text}"); err != nil || c.Oakestra != nil {
		t.Errorf("%+v %v", c.Oakestra, err)
	}
}

func TestOakestraDefaults(t *testing.T) {
	for text, want := range map[string]config.Oakestra{
		"oakestra: {}": {Socket: "/run/kerb/oakestra.sock", Bridge: "kerb-oakestra"},
		"oakestra: {ranges: [10.30.0.0/16]}": {Socket: "/run/kerb/oakestra.sock", Bridge: "kerb-oakestra",
			Ranges: []string{"10.30.0.0/16"}},
		"oakestra: {subnet: 10.18.0.0/26}": {Socket: "/run/kerb/oakestra.sock", Bridge: "kerb-oakestra",
			Subnet: "10.18.0.0/26", Subnet6: "fc00::/120"},
		"oakestra: {address: 192.0.2.1, broker: {port: 8883, ca: a.pem}}": {Socket: "/run/kerb/oakestra.sock",
			Bridge: "kerb-oakestra", Address: "192.0.2.1", Broker: config.OakestraBroker{Port: 8883, CA: "a.pem"}},
		"oakestra: {tcp: '127.0.0.1:6000', bridge: oak, subnet: 10.18.0.64/26, subnet6: 'fc00::100/120'}": {
			TCP: "127.0.0.1:6000", Bridge: "oak", Subnet: "10.18.0.64/26", Subnet6: "fc00::100/120"},
	} {
		c, err := load(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if want.AbstractorPort, want.NetManager = 11012, "/etc/netmanager"; want.Ranges == nil {
			want.Ranges = config.OakestraRanges
		}
		if got := c.Oakestra.WithDefaults(c.Paths); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", text, got, want)
		}
	}
}

func TestOakestraMistakes(t *testing.T) {
	for text, field := range map[string]string{
		"oakestra: {ranges: [10.30.0.1/16]}":                                        "oakestra.ranges[0]",
		"oakestra: {ranges: [10.30.0.0/16, x]}":                                     "oakestra.ranges[1]",
		"oakestra: {socket: oak.sock}":                                              "oakestra.socket",
		"oakestra: {tcp: '6000'}":                                                   "oakestra.tcp",
		"oakestra: {tcp: '0.0.0.0:6000'}":                                           "oakestra.tcp",
		"oakestra: {tcp: ':6000'}":                                                  "oakestra.tcp",
		"oakestra: {tcp: 'node.example.org:6000'}":                                  "oakestra.tcp",
		"oakestra: {netManager: netmanager}":                                        "oakestra.netManager",
		"oakestra: {packages: [limiter]}":                                           "oakestra.packages[0]",
		"oakestra: {packages: [/a/x, /b/x]}":                                        "oakestra.packages[1]",
		"oakestra: {packages: [/a/../b]}":                                           "oakestra.packages[0]",
		"oakestra: {abstractorPort: 65536}":                                         "oakestra.abstractorPort",
		"oakestra: {bridge: much-too-long-name}":                                    "oakestra.bridge",
		"oakestra: {alongside: ../etc}":                                             "oakestra.alongside",
		"oakestra: {alongside: kerb-oakestra}":                                      "oakestra.alongside",
		"oakestra: {bridge: ../etc}":                                                "oakestra.bridge",
		"oakestra: {subnet: 10.18.0.1/26}":                                          "oakestra.subnet",
		"oakestra: {subnet: 10.18.0.0/31}":                                          "oakestra.subnet",
		"oakestra: {subnet: 'fc00::/120'}":                                          "oakestra.subnet",
		"oakestra: {subnet: 10.18.0.0/26, subnet6: 10.18.0.0/26}":                   "oakestra.subnet6",
		"oakestra: {subnet6: 'fc00::/120'}":                                         "oakestra.subnet6",
		"oakestra: {address: here}":                                                 "oakestra.address",
		"oakestra: {address: 0.0.0.0}":                                              "oakestra.address",
		"oakestra: {port: 65536}":                                                   "oakestra.port",
		"oakestra: {broker: {port: -1}}":                                            "oakestra.broker.port",
		"oakestra: {broker: {certificate: a}}":                                      "oakestra.broker.certificate",
		"oakestra: {tls: {certificate: a, key: b}}":                                 "oakestra.tls",
		"oakestra: {tcp: ':1', tls: {address: ':2'}}":                               "oakestra.tls.address",
		"oakestra: {tcp: ':1', tls: {certificate: a, key: b}}":                      "oakestra.tls",
		"oakestra: {tcp: ':1', tls: {certificate: a, key: k, metricsTokenFile: t}}": "oakestra.tls.metricsTokenFile",
		"oakestra: {tcp: ':1', tls: {certificate: a, tokenFile: t}}":                "oakestra.tls.certificate",
		"oakestra: {sockets: /run/oak.sock}":                                        "oakestra.sockets",
		"{tcp: {address: ':1', certificate: a, key: b}, oakestra: {}}":              "tcp",
		"{oakestra: {tcp: ':1', tls: {certificate: a, key: b, file: c}}}":           "oakestra.tls.file",
	} {
		var invalid *apierrors.Invalid
		if _, err := load(t, text); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v, want a mistake in %q", text, err, field)
		}
	}
}
