// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	jsonName   = regexp.MustCompile("`[^`]*json:\"([A-Za-z0-9]+)")
	pageFields = regexp.MustCompile(`(?s)export interface \w+(?: extends [\w<>]+)? \{(.*?)\n?\}\n`)
	pageField  = regexp.MustCompile(`(\w+)\??: `)
	quantile   = regexp.MustCompile(`(?i)median|percentile|quantile`)
	metricName = regexp.MustCompile(`"([a-z]+(?:_[a-z]+)*)",\s+(?:Help|"[A-Z])|"([a-z_]+_(?:total|seconds))"`)
	camelWord  = regexp.MustCompile(`[A-Z]?[a-z0-9]+|[A-Z]+`)
)

// jsonNames are the names of fields in JSON that the files of a directory have.
func jsonNames(t *testing.T, dir string) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, file := range files(t, ".go") {
		if !strings.HasPrefix(file, dir) || strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range jsonName.FindAllStringSubmatch(read(t, file), -1) {
			names[found[1]] = file
		}
	}
	if len(names) < 20 {
		t.Fatalf("%s has %d names in JSON", dir, len(names))
	}
	return names
}

// The page reads fields by the names that the API has.
func TestPageHasNamesOfTheAPI(t *testing.T) {
	api, all := jsonNames(t, "api/v1alpha1/"), 0
	for _, found := range pageFields.FindAllStringSubmatch(read(t, "ui/src/api.ts"), -1) {
		for _, field := range pageField.FindAllStringSubmatch(found[1], -1) {
			all++
			if _, known := api[field[1]]; !known {
				t.Errorf("ui/src/api.ts: no field of the API is called %s", field[1])
			}
		}
	}
	if all < 100 {
		t.Errorf("the page has %d fields", all)
	}
}

// A quantile is p50, p99 or p999 wherever it is shown: in the API, on the command line, in metrics and on the page. The
// median time of a module, which is no quantile of packets but of measurements, is not one of them.
func TestQuantilesHaveOneName(t *testing.T) {
	for _, dir := range []string{"api/v1alpha1/", "modules/"} {
		for name, file := range jsonNames(t, dir) {
			if quantile.MatchString(name) && name != "medianNanoseconds" {
				t.Errorf("%s: %s is called p50, p99 or p999", file, name)
			}
		}
	}
	types := read(t, "api/v1alpha1/types.go")
	if n := strings.Count(types, `json:"medianNanoseconds"`); n != 1 {
		t.Errorf("api/v1alpha1/types.go has %d fields medianNanoseconds, want that of Latency", n)
	}
	for file, name := range map[string]string{"api/v1alpha1/types.go": `json:"p50Nanoseconds"`,
		"internal/cli/counts.go": `"P50"`, "ui/src/views/modules.tsx": `name: "p50"`,
		"modules/intercept/report.go": `json:"p50Nanoseconds"`} {
		if !strings.Contains(read(t, file), name) {
			t.Errorf("%s has no %s", file, name)
		}
	}
}

// A figure has one name: the field of the API, the column of the command line and of the page, the metric, and the
// series of the history have the same word in it, and units where they have no room for a sentence.
func TestFiguresHaveOneName(t *testing.T) {
	const api, counts, module, page = "api/v1alpha1/", "internal/cli/counts.go", "internal/cli/module.go",
		"ui/src/views/modules.tsx"
	status, series := "internal/status/", "internal/samples/readings.go"
	for _, figure := range []struct {
		word string
		in   map[string]string // what there is of it, by file or directory
	}{
		{"packets", map[string]string{api: `json:"packets"`, counts: `"PACKETS"`, page: `"Packets"`,
			status: `"kerb_module_packets_total"`, series: `"kerb_module_packets_per_second"`}},
		{"packets", map[string]string{api: `json:"packets"`, module: `"PACKETS"`, page: `name: "Packets", num: true, cell: (d)`,
			status: `"kerb_dropped_packets_total"`, series: `"kerb_dropped_packets_per_second"`}},
		{"bytes", map[string]string{api: `json:"bytes"`, counts: `"BYTES"`, status: `"kerb_module_bytes_total"`,
			series: `"kerb_module_bytes_per_second"`}},
		{"latency", map[string]string{api: `json:"latency,omitempty"`, "internal/cli/view.go": `"Latency"`,
			"ui/src/api.ts": `latency?: Sampled`, status: `"kerb_module_latency_seconds"`,
			series: `"kerb_module_latency_p50_seconds"`}},
		{"p50", map[string]string{api: `json:"p50Nanoseconds"`, counts: `"P50"`, page: `"p50"`,
			series: `"kerb_module_latency_p50_seconds"`, "modules/intercept/report.go": `json:"p50Nanoseconds"`,
			"internal/cli/intercept.go": `"P50"`}},
		{"p99", map[string]string{api: `json:"p99Nanoseconds"`, counts: `"P99"`, page: `"p99"`,
			series: `"kerb_module_latency_p99_seconds"`, "modules/intercept/report.go": `json:"p99Nanoseconds"`,
			"internal/cli/intercept.go": `"P99"`}},
		{"p999", map[string]string{"modules/intercept/report.go": `json:"p999Nanoseconds"`,
			"internal/cli/intercept.go": `"P999"`}},
		{"cost", map[string]string{api: `json:"costNanoseconds,omitempty"`, "internal/resource/module.go": `"COST"`,
			"internal/cli/view.go": `"Cost"`, status: `"kerb_module_cost_seconds"`}},
		{"memory", map[string]string{api: `json:"memoryBytes"`, "internal/cli/package.go": `"MEMORY"`, page: `"Memory"`,
			status: `"kerb_module_memory_bytes"`, series: `"kerb_module_memory_bytes"`}},
		{"delay", map[string]string{"modules/intercept/report.go": `json:"delayNanoseconds"`,
			"internal/cli/intercept.go": `"DELAY"`, "modules/intercept/": `"delay_seconds"`}},
		{"reason", map[string]string{api: `json:"reason`, module: `"REASON"`, page: `"Reason"`, status: `"reason"`,
			"integrations/otlp/": `"kerb.drop.reason"`}},
		{"verdict", map[string]string{api: `json:"verdict"`, "internal/cli/flows.go": `"VERDICT"`, status: `"verdict"`,
			"ui/src/api.ts": "verdict: string"}},
	} {
		for place, text := range figure.in {
			if !strings.Contains(strings.ToLower(text), figure.word) {
				t.Errorf("%s is called %s in %s", figure.word, text, place)
			}
			if !slices.ContainsFunc(filesIn(t, place), func(f string) bool { return strings.Contains(read(t, f), text) }) {
				t.Errorf("%s has no %s", place, text)
			}
		}
	}
}

// filesIn are the files of a directory, or one file.
func filesIn(t *testing.T, place string) (out []string) {
	if !strings.HasSuffix(place, "/") {
		return []string{place}
	}
	for _, file := range files(t, ".go") {
		if strings.HasPrefix(file, place) && !strings.HasSuffix(file, "_test.go") {
			out = append(out, file)
		}
	}
	return out
}

// metricsOnly are the metrics of modules that no route has, or which sum what a route lists.
var metricsOnly = map[string][]string{
	"accelerator": {"executables", "sockets", "sockets_capacity"}, // the first counts what the query of this name lists
	"classifier":  {"agreement_total", "evaluations_total", "fuse_blown"},
	"flows":       {"created_total", "recorded"},
	"nat":         {"mappings"},
}

// A metric of a module is made of the words that its routes have for the same figure.
func TestMetricsHaveNamesOfRoutes(t *testing.T) {
	units, all := []string{"total", "seconds", "info"}, 0
	for _, dir := range []string{"accelerator", "classifier", "counter", "firewall", "flows", "intercept", "nat", "proxy",
		"responder", "tunnel"} {
		words, metrics := map[string]bool{}, map[string]bool{}
		for _, file := range append(filesIn(t, "modules/"+dir+"/"), filesIn(t, "api/v1alpha1/flows.go")...) {
			text := read(t, file)
			for _, found := range jsonName.FindAllStringSubmatch(text, -1) {
				for _, word := range camelWord.FindAllString(found[1], -1) {
					words[singular(word)] = true
				}
			}
			for _, found := range metricName.FindAllStringSubmatch(text, -1) {
				metrics[found[1]+found[2]] = true
			}
		}
		for name := range metrics {
			all++
			for _, word := range strings.Split(name, "_") {
				if !words[singular(word)] && !slices.Contains(units, word) && !slices.Contains(metricsOnly[dir], name) {
					t.Errorf("kerb_%s_%s: no route of the module has the word %s", dir, name, word)
				}
			}
		}
	}
	if all < 40 {
		t.Errorf("modules have %d metrics", all)
	}
}

func singular(word string) string { return strings.TrimSuffix(strings.ToLower(word), "s") }
