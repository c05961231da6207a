// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// snapshot is the persisted state, from which a node starts if its API server is unreachable.
type snapshot struct {
	Modules    []api.Stored                 `json:"modules"`
	More       map[string]bool              `json:"more,omitempty"` // namespaces with more Modules than are kept
	Namespaces map[string]map[string]string `json:"namespaces"`
	Pods       []api.ObjectMeta             `json:"pods,omitempty"` // written by writeSnapshot
	Images     map[string]images            `json:"images,omitempty"`
	Trust      trust                        `json:"trust"`
}

const snapshotFile = "kubernetes.json"

// save writes the state, if all lists are complete.
func (s *state) save(dir string) error {
	head, pods, err := s.snapshot()
	if err != nil || head == nil {
		return err
	}
	return atomicfile.WriteFrom(filepath.Join(dir, snapshotFile), 0o600, func(w io.Writer) error {
		return writeSnapshot(w, head, pods)
	})
}

// snapshot returns a snapshot without its pods as a JSON object, and its pods by UID. The object is nil if a list is
// incomplete.
func (s *state) snapshot() (head []byte, pods map[string]pod, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.synced != ofAll {
		return nil, nil, nil
	}
	out := snapshot{Namespaces: map[string]map[string]string{}, More: s.truncatedNamespaces(), Images: s.images,
		Trust: s.trust}
	for _, m := range s.modules {
		out.Modules = append(out.Modules, api.Stored{Module: m})
	}
	for name, l := range s.namespaces {
		out.Namespaces[name] = l.set()
	}
	head, err = json.Marshal(out)
	return head, maps.Clone(s.pods), err
}

// writeSnapshot encodes one pod at a time: the JSON of thousands, with their labels as maps, takes more memory than the
// rest of the program.
func writeSnapshot(to io.Writer, head []byte, pods map[string]pod) error {
	w := bufio.NewWriterSize(to, 32<<10)
	_, _ = w.Write(head[:len(head)-1]) // without the closing brace; w keeps errors until Flush
	_, _ = w.WriteString(`,"pods":[`)
	separator := ""
	for uid, p := range pods {
		if p.tooMany {
			continue // such a pod is not admitted
		}
		m := api.ObjectMeta{Name: p.name, Namespace: p.namespace, UID: uid, Labels: p.labels.set()}
		if p.static != "" {
			m.Annotations = &api.Annotations{Static: p.static}
		}
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		_, _ = w.WriteString(separator)
		_, _ = w.Write(text)
		separator = ","
	}
	_, _ = w.WriteString("]}")
	return w.Flush()
}

// restore reads the state that save has written. Without a file, the state is empty.
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
			s.setModule(m.Module)
		}
		for namespace := range in.More {
			s.moduleUsage.namespace(namespace).truncated = true
		}
		s.trust = in.Trust
		maps.Copy(s.images, in.Images)
		for name, set := range in.Namespaces {
			s.namespaces[name] = labelsOf(set)
		}
		s.inSnapshot = make(map[string]bool, len(in.Pods))
		for _, p := range in.Pods {
			s.inSnapshot[p.UID] = true
			s.pods[p.UID] = podOf(p)
		}
		s.restored = true
		return true
	})
	return nil
}

// Purge removes the files of Run in a directory, and the directory if it is empty. Run must not use it at the same
// time.
func Purge(dir string) (err error) {
	for _, name := range []string{snapshotFile, rolloutsFile} {
		all, e := filepath.Glob(filepath.Join(dir, "."+name+"*")) // temporary files of a process that was killed
		err = errors.Join(err, e)
		for _, path := range append(all, filepath.Join(dir, name)) {
			if e := os.Remove(path); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	_ = os.Remove(dir)
	return err
}
