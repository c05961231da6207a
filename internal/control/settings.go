// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/internal/atomicfile"
	"github.com/kerb-edge/kerb/sdk"
)

// cachedSettings is a control plane's answer to compile. With it a restarted agent knows the settings of what runs,
// even if the control plane does not answer any more.
type cachedSettings struct {
	ID       string       `json:"id"`
	Settings sdk.Settings `json:"settings"`
}

func (m *Manager) settingsFile(module string) string {
	return filepath.Join(m.opts.State, "settings", module+".json")
}

// CacheSettings stores what a control plane compiled from the config of a map set.
func (m *Manager) CacheSettings(module, id string, settings sdk.Settings) error {
	data, err := json.Marshal(cachedSettings{ID: id, Settings: settings})
	if err != nil {
		return err
	}
	path := m.settingsFile(module)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Swap(path, data, 0o600) // what is lost in a crash of the machine is compiled again
}

// CachedSettings returns the settings stored by CacheSettings, if they belong to the same map set.
func (m *Manager) CachedSettings(module, id string) (sdk.Settings, bool) {
	data, err := os.ReadFile(m.settingsFile(module))
	if err != nil {
		return sdk.Settings{}, false
	}
	var r cachedSettings
	if decodeAnswer("", 200, data, &r) != nil || r.ID != id || checkSettings(r.Settings) != nil {
		return sdk.Settings{}, false
	}
	return r.Settings, true
}
