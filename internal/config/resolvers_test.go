// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
)

func TestOakestraResolver(t *testing.T) {
	if c, err := load(t, "log: {format: text}"); err != nil || c.Resolvers.Oakestra != nil {
		t.Errorf("%+v %v", c.Resolvers, err)
	}
	c, err := load(t, "resolvers: {oakestra: {broker: 'tcp://192.0.2.1:10003', node: 6543af}}")
	if err != nil || !slices.Equal(c.Resolvers.Oakestra.WithDefaults().Ranges, config.OakestraRanges) {
		t.Errorf("%+v, %v", c.Resolvers.Oakestra, err)
	}
	c, err = load(t, "resolvers: {oakestra: {broker: 'ssl://broker:8883', node: n1, ranges: [10.30.0.0/16], ca: /ca, "+
		"certificate: /c, key: /k, address: 192.0.2.7}}")
	if err != nil || !slices.Equal(c.Resolvers.Oakestra.WithDefaults().Ranges, []string{"10.30.0.0/16"}) {
		t.Errorf("%+v, %v", c.Resolvers.Oakestra, err)
	}
	longest := strings.Repeat("n", 128)
	if _, err := load(t, "resolvers: {oakestra: {broker: 'tcp://h:1', node: "+longest+"}}"); err != nil {
		t.Error(err)
	}
	for text, field := range map[string]string{
		"broker: 'tcp://h:1', node: n" + longest:                          "node",
		"node: n1":                                                        "broker",
		"broker: '192.0.2.1:10003', node: n1":                             "broker",
		"broker: 'ws://192.0.2.1:10003', node: n1":                        "broker",
		"broker: 'tcp://192.0.2.1', node: n1":                             "broker",
		"broker: 'tcp://h:1', node: n1, ca: /ca":                          "broker",
		"broker: 'tcp://h:1'":                                             "node",
		"broker: 'tcp://h:1', node: 'a/b'":                                "node",
		"broker: 'tcp://h:1', node: '#'":                                  "node",
		"broker: 'tcp://h:1', node: n1, address: host":                    "address",
		"broker: 'tcp://h:1', node: n1, ranges: [10.30.0.1/16]":           "ranges[0]",
		"broker: 'tcp://h:1', node: n1, ranges: [10.30.0.0/16, x]":        "ranges[1]",
		"broker: 'ssl://h:1', node: n1, certificate: /c":                  "certificate",
		"broker: 'ssl://h:1', node: n1, key: /k, certificate: '', ca: ''": "certificate",
	} {
		var wrong *apierrors.Invalid
		if _, err := load(t, "resolvers: {oakestra: {"+text+"}}"); !errors.As(err, &wrong) ||
			wrong.Field != "resolvers.oakestra."+field || strings.Contains(wrong.Reason, "%!") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
