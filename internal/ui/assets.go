// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"embed"
	"net/http"
	"path"
)

// dist is built from the directory ui by `make ui`.
//
//go:embed dist/*.gz
var dist embed.FS

var types = map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8"}

// asset serves a file as it is embedded, which every browser can read.
func asset(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		data, err := dist.ReadFile("dist/" + name + ".gz")
		if err != nil {
			http.Error(w, "the page is not part of this build: make ui", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", types[path.Ext(name)])
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(data)
	}
}
