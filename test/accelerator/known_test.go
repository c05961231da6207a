// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"fmt"
	"strings"
	"testing"

	modules "github.com/kerb-edge/kerb/modules/accelerator"
)

// Each program that is accelerated by default runs here, and messages of its connections are redirected: both ends are
// in the table.
func TestKnownPrograms(t *testing.T) {
	if plain {
		t.Skip("nothing is redirected")
	}
	n := newAcceleratedNode(t, nil)
	drivers := n.drivers()
	for name := range modules.Known {
		drive := drivers[name]
		if drive == nil {
			t.Errorf("%s is known to be safe, but nothing here shows that", name)
			continue
		}
		before := n.pairReport().Messages
		n.Eventually("messages of "+name+" are redirected", func() bool {
			drive()
			return n.pairReport().Messages >= before+10
		})
		t.Logf("%s: %d messages", name, n.pairReport().Messages-before)
	}
	found := n.executables()
	for name := range drivers {
		if x, there := found[name]; there && (x.Verdict != "safe" || x.Why != "") {
			t.Errorf("%+v", x)
		}
	}
}

// drivers start servers, and return functions that generate traffic of each known program.
func (n *node) drivers() map[string]func() {
	n.T.Helper()
	dir := n.website()
	n.daemon(n.b, webPort, installed(n.T, "node"), installed(n.T, "testdata/web/echo.js"), fmt.Sprint(webPort), dir)
	n.redis()
	n.postgres()
	n.installedEnvoy()
	host := n.b.Addr4().String()
	pages := strings.Fields(strings.Repeat(url(n.b, webPort)+"/one -o /dev/null ", 20))
	statements := strings.Fields(strings.Repeat("-c SELECT(1) ", 20))
	web := func() { n.output(n.a, "curl", append([]string{"-sSf", "-o", "/dev/null"}, pages...)...) }
	proxied := strings.Fields(strings.Repeat(url(n.b, proxyPort)+"/one -o /dev/null ", 20))
	envoy := func() { n.output(n.a, "curl", append([]string{"-sSf", "-o", "/dev/null"}, proxied...)...) }
	redis := func() {
		n.output(n.a, "redis-benchmark", "-h", host, "-p", fmt.Sprint(redisPort), "-q", "-c", "4", "-n", "1000", "-t", "get")
	}
	psql := func() {
		n.output(n.a, "psql", append([]string{"-h", host, "-U", "postgres", "-qAtX"}, statements...)...)
	}
	pgbench := func() {
		n.output(n.a, "pgbench", "-h", host, "-U", "postgres", "-c", "2", "-t", "50", "-n", "-f",
			n.file("select.sql", "SELECT 1;\n"), "postgres")
	}
	return map[string]func(){"curl": web, "node": web, "envoy": envoy, "redis-server": redis, "redis-check-rdb": redis,
		"redis-benchmark": redis, "psql": psql, "postgres": pgbench, "pgbench": pgbench}
}

// installedEnvoy runs Envoy on b at its path in images, in a separate mount namespace.
func (n *node) installedEnvoy() {
	n.T.Helper()
	n.daemon(n.b, proxyPort, "unshare", "--mount", "sh", "-ec", `mount -t tmpfs -o mode=755 tmpfs /usr/local
		mkdir /usr/local/bin; touch /usr/local/bin/envoy; mount --bind "$0" /usr/local/bin/envoy
		exec /usr/local/bin/envoy -c "$1" --concurrency 1 --disable-hot-restart -l error`,
		installed(n.T, envoyPath), n.envoyConfig())
}
