// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// archive is the image of this build, and earlier that of the build that it replaces: KERB_EARLIER=FILE, or the same
// one under another name.
const archive = "dist/kerb-image.tar"

func earlier() string { return cmp.Or(os.Getenv("KERB_EARLIER"), archive) }

// upgrade replaces the containers of the earlier image node by node, while a pod of each node sends numbered datagrams,
// and others start all the time. It returns these pods. No datagram is lost, and no start fails.
func (c cluster) upgrade() []pod {
	c.Helper()
	var flows []*flow
	onEachNode(func(node string) { flows = append(flows, c.flow(node)) })
	before := c.warnings()
	s := c.starting()
	began := time.Now()
	c.apply(c.render())
	c.ready()
	c.Logf("all containers were replaced within %v", time.Since(began).Round(100*time.Millisecond))
	all := s.end(c)
	for _, f := range flows {
		f.checkComplete(c)
	}
	failed := slices.DeleteFunc(c.warnings(), func(event string) bool { return slices.Contains(before, event) })
	if len(failed) > 0 {
		c.Errorf("of %d pods, starts have failed:\n%s", len(all), strings.Join(failed, "\n"))
	}
	c.Logf("%d pods have started meanwhile; the longest start took %v", len(all), s.longest.Round(100*time.Millisecond))
	return all
}

// ready waits until all containers of Kerb run.
func (c cluster) ready() {
	c.Helper()
	for _, workload := range []string{"daemonset/kerb", "deployment/kerb-kube-controller"} {
		c.do("kubectl", "-n", "kerb-system", "rollout", "status", workload, "--timeout=300s")
	}
}

// starting are pods that start during another operation: on each node two at a time, a denied and an open one.
type starting struct {
	ended chan struct{}
	wg    sync.WaitGroup

	sync.Mutex
	all     []pod
	longest time.Duration
	err     error
}

func (c cluster) starting() *starting {
	s := &starting{ended: make(chan struct{})}
	onEachNode(func(node string) {
		for _, app := range []string{"denied", "open"} {
			s.wg.Go(func() { s.run(c, node, app) })
		}
	})
	return s
}

// run starts one pod after the other.
func (s *starting) run(c cluster, node, app string) {
	for number := 0; ; number++ {
		began := time.Now()
		p, err := c.startOne(fmt.Sprintf("%s-%s-%d", node, app, number), app, node)
		s.Lock()
		s.all, s.longest, s.err = append(s.all, p), max(s.longest, time.Since(began)), cmp.Or(s.err, err)
		s.Unlock()
		select {
		case <-s.ended:
			return
		default:
		}
		if err != nil {
			return
		}
	}
}

// end returns the pods, when the last of them has started.
func (s *starting) end(c cluster) []pod {
	c.Helper()
	close(s.ended)
	s.wg.Wait()
	if s.err != nil {
		c.Fatal(s.err)
	}
	return s.all
}

// startOne creates a pod that floods the sink and returns when it has sent. It sends less than others, because there
// are many.
func (c cluster) startOne(name, app, node string) (pod, error) {
	var made object
	manifest := strings.Replace(c.manifest(name, app, node, "flood", floodPort), c.pace(), "100ms", 1)
	out, err := c.try(manifest, "kubectl", "create", "-o", "json", "-f", "-")
	if err == nil {
		err = json.Unmarshal([]byte(out), &made)
	}
	p := pod{made.Metadata.Name, made.Metadata.UID, node, app == "denied"}
	for end := time.Now().Add(3 * time.Minute); err == nil && c.flood(p, 0).syns == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			err = fmt.Errorf("pod %s has not sent within three minutes", p.name)
		}
	}
	return p, err
}

// warnings returns failures of the test's pods, from their events.
func (c cluster) warnings() (all []string) {
	c.Helper()
	for line := range strings.Lines(c.do("kubectl", "get", "events", "--field-selector", "type=Warning", "-o",
		`jsonpath={range .items[*]}{.involvedObject.name} {.reason} x{.count}: {.message}{"\n"}{end}`)) {
		if strings.HasPrefix(line, c.test()+"-") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(all)
	return all
}
