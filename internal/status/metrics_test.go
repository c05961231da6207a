// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/sdk"
)

// exported are series by name and module, of control planes with these answers.
func exported(t *testing.T, all ...scraped) (series map[string]float64, clashes map[string]string) {
	t.Helper()
	var out promtext.Set
	clashes = exportSamples(all, &out)
	series = map[string]float64{}
	text, err := out.Encode()
	if err != nil {
		t.Error(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "module" {
					series[name+" "+l.GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return series, clashes
}

// A package cannot take the names of built-in packages or of the agent, however it is called.
func TestMetricNamesAreReserved(t *testing.T) {
	rules := sdk.Sample{Name: "rule_packets_total", Help: "Packets.", Counter: true, Value: 1}
	series, _ := exported(t,
		scraped{module: "fw", pkg: "firewall", builtin: true, samples: []sdk.Sample{rules}},
		scraped{module: "a", pkg: "firewall", samples: []sdk.Sample{{Name: "rule_packets_total", Help: "other", Value: 7}}},
		scraped{module: "b", pkg: "firewall-rule", samples: []sdk.Sample{{Name: "packets_total", Help: "other", Value: 7}}},
		scraped{module: "c", pkg: "module", samples: []sdk.Sample{{Name: "memory_bytes", Help: "other", Value: 7}}},
		scraped{module: "d", pkg: "control-plane", stale: true, samples: []sdk.Sample{{Name: "up", Help: "other", Value: 7}}})
	for name, want := range map[string]float64{
		"kerb_firewall_rule_packets_total fw": 1, "kerb_x_firewall_rule_packets_total a": 7,
		"kerb_x_module_memory_bytes c": 7,
		"kerb_x_control_plane_up d":    7, "kerb_control_plane_stale d": 1, "kerb_control_plane_stale fw": 0,
	} {
		if got, ok := series[name]; !ok || got != want {
			t.Errorf("%s is %v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"kerb_firewall_rule_packets_total a", "kerb_firewall_rule_packets_total b",
		"kerb_module_memory_bytes c"} {
		if _, ok := series[name]; ok {
			t.Errorf("%s is there", name)
		}
	}
}

// Of two modules that export one name with two meanings the first keeps its series, and the other is named.
func TestMetricNamesThatClash(t *testing.T) {
	one := sdk.Sample{Name: "b_total", Help: "one", Counter: true, Value: 1}
	series, clashes := exported(t,
		scraped{module: "m", pkg: "a", samples: []sdk.Sample{one}},
		scraped{module: "n", pkg: "a", samples: []sdk.Sample{one}},
		scraped{module: "o", pkg: "a-b", samples: []sdk.Sample{{Name: "total", Help: "two", Value: 2},
			{Name: "more", Value: 3}}})
	if series["kerb_x_a_b_total m"] != 1 || series["kerb_x_a_b_total n"] != 1 || series["kerb_x_a_b_more o"] != 3 {
		t.Errorf("%v", series)
	}
	if len(clashes) != 1 || clashes["o"] != "kerb_x_a_b_total" {
		t.Errorf("%v", clashes)
	}
}
