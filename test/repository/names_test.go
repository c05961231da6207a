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

// A figure has one name: the field of the API, the column of the command line and of the page, the metric, the
// attribute of OpenTelemetry, and the series of the history have the same words in it.
func TestFiguresHaveOneName(t *testing.T) {
	const api, counts, module, flows, page = "api/v1alpha1/", "internal/cli/counts.go", "internal/cli/module.go",
		"internal/cli/flows.go", "ui/src/views/modules.tsx"
	const status, series, otlp = "internal/status/", "internal/samples/readings.go", "integrations/otlp/"
	const report, intercept = "modules/intercept/report.go", "internal/cli/intercept.go"
	for _, figure := range []struct {
		words string
		in    []string // files or directories
	}{
		{"packets", []string{api, counts, module, page, status, series}},
		{"dropped packets", []string{status, series}},
		{"bytes", []string{api, counts, status, series}},
		{"latency", []string{api, "internal/cli/view.go", "ui/src/api.ts", status, series}},
		{"p50", []string{api, counts, page, series, report, intercept}},
		{"p99", []string{api, counts, page, series, report, intercept}},
		{"p999", []string{report, intercept}},
		{"cost", []string{api, "internal/resource/module.go", "internal/cli/view.go", status}},
		{"memory", []string{api, "internal/cli/package.go", page, status, series}},
		{"delay", []string{report, intercept, "modules/intercept/"}},
		{"reason", []string{api, module, page, status, otlp}},
		{"verdict", []string{api, flows, status, "ui/src/api.ts"}},
		{"packets", []string{"api/v1alpha1/flows.go", flows, "ui/src/views/map.tsx"}},
		{"reply packets", []string{api, flows, "ui/src/views/map.tsx", "ui/src/api.ts"}},
		{"reply bytes", []string{api, flows, "ui/src/views/map.tsx", "ui/src/api.ts"}},
		{"retransmits", []string{api, flows}},
		{"took", []string{api, "internal/cli/changes.go", "ui/src/views/changes.tsx", otlp}},
		{"took nanoseconds", []string{api, otlp, "ui/src/api.ts"}}, // where a number has no unit behind it
	} {
		for _, place := range figure.in {
			if !slices.ContainsFunc(namesIn(t, place), func(name string) bool {
				return strings.Contains(" "+name+" ", " "+figure.words+" ")
			}) {
				t.Errorf("%s has no name with %q in it", place, figure.words)
			}
		}
	}
}

var topFigure = regexp.MustCompile(`figure\("[^"]+", ("kerb_[a-z_]+")`)

// The columns of kerb top are of series that the agent has.
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

// sourceName finds names in source: fields of JSON, metrics, attributes and titles. Sentences are none.
var sourceName = regexp.MustCompile(`"([A-Za-z][A-Za-z0-9_./-]*(?: [a-z]+)?)[",]`)

// namesIn are the names in a file or in the files of a directory, in lower case with spaces between their words.
func namesIn(t *testing.T, place string) (out []string) {
	t.Helper()
	for _, file := range filesIn(t, place) {
		text := read(t, file)
		found := sourceName.FindAllStringSubmatch(text, -1)
		if strings.HasSuffix(file, ".ts") {
			found = append(found, pageField.FindAllStringSubmatch(text, -1)...)
		}
		for _, name := range found {
			out = append(out, strings.ToLower(strings.Join(camelWord.FindAllString(name[1], -1), " ")))
		}
	}
	return out
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
