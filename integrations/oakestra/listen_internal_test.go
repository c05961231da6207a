// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"testing"
)

// A configured socket that equals NodeEngine's default is opened once, without a warning.
func TestConfiguredDefaultSocket(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	all, err := listen(Options{Socket: filepath.Join(dir, "netmanager.sock"), NetManager: dir},
		slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil || len(all) != 1 || log.Len() > 0 {
		t.Errorf("%d endpoints, %v, log %s", len(all), err, log.String())
	}
	for _, e := range all {
		e.Close()
	}
}
