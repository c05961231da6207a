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

// jsonNames returns the names of JSON fields in the files of a directory.
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

// The page reads fields by their names in the API.
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

// A quantile is named p50, p99 or p999 everywhere: in the API, on the command line, in metrics and on the page. The
// median time of a module is a quantile of measurements, not of packets, and is not one of them.
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

// A figure has one name: the field of the API, the column of the command line and of the page, the metric, the
// attribute of OpenTelemetry, and the series of the history contain the same words. Each is listed here as in its file:
// a renamed one has to be renamed here, and must keep the words.
func TestFiguresHaveOneName(t *testing.T) {
	const types, apiFlows, page = "api/v1alpha1/types.go", "api/v1alpha1/flows.go", "ui/src/api.ts"
	const counts, module, view, flows = "internal/cli/counts.go", "internal/cli/module.go", "internal/cli/view.go",
		"internal/cli/flows.go"
	const modules, edges, otlp = "ui/src/views/modules.tsx", "ui/src/views/map.tsx", "integrations/otlp/logs.go"
	const metrics, exits = "internal/status/metrics.go", "internal/status/counts.go"
	const series, report, intercept = "internal/samples/readings.go", "modules/intercept/report.go",
		"internal/cli/intercept.go"
	for _, figure := range []struct {
		words string
		names map[string]string // by file, separated by commas
	}{
		{"packets", map[string]string{types: "packets", counts: "PACKETS", module: "PACKETS", modules: "Packets",
			exits: "kerb_module_packets_total", series: "kerb_module_packets_per_second, kerb_service_packets_per_second",
			report: "packets, packets_total", intercept: "PACKETS"}},
		{"dropped packets", map[string]string{metrics: "kerb_dropped_packets_total, kerb_service_dropped_packets_total",
			series: "kerb_dropped_packets_per_second, kerb_service_dropped_packets_per_second"}},
		{"bytes", map[string]string{types: "bytes", counts: "BYTES", exits: "kerb_module_bytes_total",
			series: "kerb_module_bytes_per_second, kerb_service_bytes_per_second", report: "bytes, bytes_total",
			intercept: "BYTES"}},
		{"latency", map[string]string{types: "latency", view: "Latency", page: "latency",
			exits: "kerb_module_latency_seconds", series: "kerb_module_latency_p50_seconds, kerb_module_latency_p99_seconds"}},
		{"p50", map[string]string{types: "p50Nanoseconds", counts: "P50", modules: "p50", page: "p50Nanoseconds",
			series: "kerb_module_latency_p50_seconds", report: "p50Nanoseconds", intercept: "P50"}},
		{"p99", map[string]string{types: "p99Nanoseconds", counts: "P99", modules: "p99", page: "p99Nanoseconds",
			series: "kerb_module_latency_p99_seconds", report: "p99Nanoseconds", intercept: "P99"}},
		{"p999", map[string]string{report: "p999Nanoseconds", intercept: "P999"}},
		{"cost", map[string]string{"api/v1alpha1/views.go": "costNanoseconds", "internal/resource/module.go": "COST",
			view: "COST", metrics: "kerb_module_cost_seconds"}},
		{"memory", map[string]string{types: "memoryBytes", "internal/resource/module.go": "MEMORY",
			"internal/cli/package.go": "MEMORY", modules: "Memory", metrics: "kerb_module_memory_bytes",
			series: "kerb_module_memory_bytes"}},
		{"delay", map[string]string{report: "delay, delayNanoseconds, delay_seconds", intercept: "DELAY"}},
		{"reason", map[string]string{types: "reason", module: "REASON", modules: "Reason", metrics: "reason",
			otlp: "kerb.drop.reason, kerb.event.reason"}},
		{"verdict", map[string]string{apiFlows: "verdict", flows: "VERDICT", exits: "verdict", page: "verdict"}},
		{"packets", map[string]string{apiFlows: "packets", flows: "PACKETS", edges: "Packets", page: "packets"}},
		{"bytes", map[string]string{apiFlows: "bytes", flows: "BYTES", edges: "Bytes", page: "bytes"}},
		{"reply packets", map[string]string{apiFlows: "replyPackets", flows: "REPLY-PACKETS", edges: "Reply packets",
			page: "replyPackets"}},
		{"reply bytes", map[string]string{apiFlows: "replyBytes", flows: "REPLY-BYTES", edges: "Reply bytes",
			page: "replyBytes"}},
		{"retransmits", map[string]string{apiFlows: "retransmits", flows: "RETRANSMITS"}},
		{"took", map[string]string{"internal/cli/changes.go": "TOOK, Took", "ui/src/views/changes.tsx": "Took"}},
		{"took nanoseconds", map[string]string{"api/v1alpha1/changes.go": "tookNanoseconds", page: "tookNanoseconds",
			otlp: "kerb.change.took_nanoseconds"}}, // where a number has no unit after it
	} {
		for file, names := range figure.names {
			present := namesIn(t, file)
			for name := range strings.SplitSeq(names, ", ") {
				if !slices.Contains(present, name) {
					t.Errorf("%s has no name %q", file, name)
				}
				if !strings.Contains(wordsOf(name), " "+figure.words+" ") {
					t.Errorf("%s: %q is not called %q", file, name, figure.words)
				}
			}
		}
	}
}

var topFigure = regexp.MustCompile(`figure\("[^"]+", ("kerb_[a-z_]+")`)

// The columns of kerb top are series of the agent.
func TestTopHasSeries(t *testing.T) {
	var series strings.Builder
	for _, file := range filesIn(t, "internal/samples/") {
		series.WriteString(read(t, file))
	}
	found := topFigure.FindAllStringSubmatch(read(t, "internal/cli/top.go"), -1)
	for _, f := range found {
		if !strings.Contains(series.String(), f[1]) {
			t.Errorf("no series is called %s", f[1])
		}
	}
	if len(found) < 10 {
		t.Errorf("kerb top has %d columns of series", len(found))
	}
}

// sourceName matches names in source: fields of JSON, metrics, attributes and titles, but not sentences.
var sourceName = regexp.MustCompile(`"([A-Za-z][A-Za-z0-9_./-]*(?: [a-z]+)?)[",]`)

// namesIn returns the names in a file.
func namesIn(t *testing.T, file string) (out []string) {
	t.Helper()
	text := read(t, file)
	found := sourceName.FindAllStringSubmatch(text, -1)
	if strings.HasSuffix(file, ".ts") {
		found = append(found, pageField.FindAllStringSubmatch(text, -1)...)
	}
	for _, name := range found {
		out = append(out, name[1])
	}
	return out
}

// wordsOf returns the words of a name in lower case, with spaces between and around them.
func wordsOf(name string) string {
	return " " + strings.ToLower(strings.Join(camelWord.FindAllString(name, -1), " ")) + " "
}

// filesIn returns the files of a directory, or one file.
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

// metricsOnly are metrics of modules without a route, or which sum a list of a route.
var metricsOnly = map[string][]string{
	"accelerator": {"executables", "sockets", "sockets_capacity"}, // the first is the length of the query's list
	"classifier":  {"agreement_total", "evaluations_total", "fuse_blown"},
	"flows":       {"created_total", "recorded"},
	"nat":         {"mappings"},
}

// The words of a module's metric are those of its routes for the same figure.
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
