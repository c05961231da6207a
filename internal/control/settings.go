// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/sdk"
)

// remembered is what a control plane has answered to compile. With it a restarted agent knows what runs, even when the
// control plane does not answer any more.
type remembered struct {
	ID       string       `json:"id"`
	Settings sdk.Settings `json:"settings"`
}

func (m *Manager) settingsFile(module string) string {
	return filepath.Join(m.opts.State, "settings", module+".json")
}

// Remember keeps what a control plane made of the config of a generation.
func (m *Manager) Remember(module, id string, settings sdk.Settings) error {
	data, err := json.Marshal(remembered{ID: id, Settings: settings})
	if err != nil {
		return err
	}
	path := m.settingsFile(module)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return replaceFile(path, data, 0o600)
}

// Recall returns what Remember kept, if it is about the same generation.
func (m *Manager) Recall(module, id string) (sdk.Settings, bool) {
	data, err := os.ReadFile(m.settingsFile(module))
	if err != nil {
		return sdk.Settings{}, false
	}
	var r remembered
	if understand("", 200, data, &r) != nil || r.ID != id || checkSettings(r.Settings) != nil {
		return sdk.Settings{}, false
	}
	return r.Settings, true
}
