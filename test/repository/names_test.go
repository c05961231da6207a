// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"regexp"
	"strings"
	"testing"
)

var (
	jsonName   = regexp.MustCompile("`[^`]*json:\"([A-Za-z0-9]+)")
	pageFields = regexp.MustCompile(`(?s)export interface \w+(?: extends [\w<>]+)? \{(.*?)\n?\}\n`)
	pageField  = regexp.MustCompile(`(\w+)\??: `)
	quantile   = regexp.MustCompile(`(?i)median|percentile|quantile`)
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
		"modules/intercept/report.go": `json:"p50"`} {
		if !strings.Contains(read(t, file), name) {
			t.Errorf("%s has no %s", file, name)
		}
	}
}
