// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// snapshot is the state on disk, with which a node starts whose API server is away.
type snapshot struct {
	Modules    []api.Module                 `json:"modules"`
	Namespaces map[string]map[string]string `json:"namespaces"`
	Pods       []api.ObjectMeta             `json:"pods"`
	Images     map[string]images            `json:"images,omitempty"`
	Trust      trust                        `json:"trust"`
}

const snapshotFile = "kubernetes.json"

// save writes the state, if a complete list of everything has come.
func (s *state) save(dir string) error {
	text, err := s.snapshot()
	if err != nil || text == nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, snapshotFile), text, 0o600)
}

func (s *state) snapshot() (text []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofAll {
		return nil, nil
	}
	out := snapshot{Namespaces: map[string]map[string]string{}, Images: s.images, Trust: s.trust}
	for _, m := range s.modules {
		out.Modules = append(out.Modules, m)
	}
	for name, l := range s.namespaces {
		out.Namespaces[name] = l.set()
	}
	for uid, p := range s.pods {
		if p.tooMany {
			continue // it is not admitted
		}
		m := api.ObjectMeta{Name: p.name, Namespace: p.namespace, UID: uid, Labels: p.labels.set()}
		if p.static != "" {
			m.Annotations = &api.Annotations{Static: p.static}
		}
		out.Pods = append(out.Pods, m)
	}
	return json.Marshal(out)
}

// restore reads what save has written. Without a file there is nothing to start from.
func (s *state) restore(dir string) error {
	text, err := os.ReadFile(filepath.Join(dir, snapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var in snapshot
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	s.update(ofAll, func() bool {
		for _, m := range in.Modules {
			s.modules[nodeName(m)] = m
			s.noteImage(nodeName(m), m.Spec.Package.Image)
		}
		s.trust = in.Trust
		maps.Copy(s.images, in.Images)
		for name, set := range in.Namespaces {
			s.namespaces[name] = labelsOf(set)
		}
		s.earlier = make(map[string]bool, len(in.Pods))
		for _, p := range in.Pods {
			s.earlier[p.UID] = true
			s.pods[p.UID] = podOf(p)
		}
		s.restored = true
		return true
	})
	return nil
}
