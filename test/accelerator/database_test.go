// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const redisPort = 6379

func (n *node) redis() {
	n.T.Helper()
	n.daemon(n.b, redisPort, installed(n.T, "redis-server"), "--port", fmt.Sprint(redisPort), "--bind", "0.0.0.0",
		"--protected-mode", "no", "--save", "", "--appendonly", "no")
}

// redis with its own benchmark, with and without pipelines, and with values larger than a buffer.
func TestRedis(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	n.website()
	n.redis()
	host, port := n.b.Addr4().String(), fmt.Sprint(redisPort)
	for _, shape := range [][]string{{"-c", "1", "-n", "1000"}, {"-c", "16", "-n", "3000"}, {"-c", "50", "-n", "3000"},
		{"-c", "16", "-n", "10000", "-P", "16"}} {
		out := n.output(n.a, "redis-benchmark", append(shape, "-h", host, "-p", port, "-q", "-t",
			"ping_mbulk,set,get,incr,lpush,lrange_100")...)
		if strings.Contains(strings.ToLower(out), "err") || strings.Count(out, "requests per second") < 6 {
			t.Errorf("redis-benchmark %v: %s", shape, out)
		}
	}
	for name := range webFiles {
		n.output(n.a, "sh", "-c", fmt.Sprintf("redis-cli -h %s -p %s -x set %s <%s", host, port, name, n.published(name)))
		n.output(n.a, "sh", "-c", fmt.Sprintf("redis-cli -h %s -p %s --raw get %s | head -c %d >%s", host, port, name,
			webFiles[name], n.fetched(name, 0)))
		n.same("redis value "+name, n.fetched(name, 0), n.published(name))
	}
	n.checkVerdicts("redis-check-rdb", "redis-benchmark")
	if !plain {
		n.traced("redis-benchmark", "-h", host, "-p", port, "-q", "-c", "2", "-n", "10000000", "-t", "get")
	}
}

// traced checks that kerb trace shows redirected messages of a program on a, to b.
func (n *node) traced(name string, args ...string) {
	n.T.Helper()
	ctx, cancel := context.WithCancel(n.T.Context())
	client := n.command(ctx, n.a, name, args...)
	if err := client.Start(); err != nil {
		n.T.Fatal(err)
	}
	defer func() {
		cancel()
		_ = client.Wait() // was killed
	}()
	to := fmt.Sprintf("%s:%d", n.b.Addr4(), redisPort)
	out, err := n.Command(n.T.Context(), "trace", "--service", n.a.Name(), "--port", fmt.Sprint(redisPort),
		"--verdict", "redirect", "--messages", "--count", "20").CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != 20 {
		n.T.Fatalf("kerb trace: %v: %s", err, out)
	}
	for _, l := range lines {
		if !strings.Contains(l, n.a.Name()+" message") || !strings.Contains(l, " > "+to+" len ") ||
			!strings.HasSuffix(l, "fast:redirect") {
			n.T.Errorf("kerb trace: %s", l)
		}
	}
}

const postgresPort = 5432

// postgres runs PostgreSQL on a host, as the user that it requires.
func (n *node) postgres() {
	n.T.Helper()
	owner, err := user.Lookup("postgres")
	if err != nil {
		n.T.Fatalf("PostgreSQL is not installed, run scripts/setup test: %v", err)
	}
	uid, _ := strconv.Atoi(owner.Uid)
	gid, _ := strconv.Atoi(owner.Gid)
	data, bin := filepath.Join(n.Dir, "postgres"), filepath.Dir(installed(n.T, "/usr/lib/postgresql/*/bin/postgres"))
	if err := os.Mkdir(data, 0o700); err != nil {
		n.T.Fatal(err)
	}
	if err := os.Chown(data, uid, gid); err != nil {
		n.T.Fatal(err)
	}
	as := []string{"--reuid", owner.Uid, "--regid", owner.Gid, "--clear-groups"}
	if out, err := exec.Command("setpriv", append(as, filepath.Join(bin, "initdb"), "-D", data, "--no-sync", "-A",
		"trust")...).CombinedOutput(); err != nil {
		n.T.Fatalf("initdb: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte("host all all all trust\n"), 0o644); err != nil {
		n.T.Fatal(err)
	}
	n.daemon(n.b, postgresPort, "setpriv", append(as, filepath.Join(bin, "postgres"), "-D", data, "-c",
		"listen_addresses=*",
		"-c", "unix_socket_directories=", "-c", "fsync=off", "-p", fmt.Sprint(postgresPort))...)
	n.Eventually("PostgreSQL has started up", func() bool { // earlier it accepts connections, and rejects queries
		return n.command(n.T.Context(), n.b, "pg_isready", "-q", "-h", n.b.Addr4().String()).Run() == nil
	})
}

// PostgreSQL with pgbench, whose balances must add up; a table of 10 MB is exported and imported again.
func TestPostgres(t *testing.T) {
	n := newAcceleratedNode(t, nil)
	n.postgres()
	host := n.b.Addr4().String()
	sql := func(query string) string {
		n.T.Helper()
		return strings.TrimSpace(n.output(n.a, "psql", "-h", host, "-U", "postgres", "-qAtX", "-v", "ON_ERROR_STOP=1",
			"-c", query))
	}
	n.awaitVerdicts(func() { sql("SELECT pg_sleep(0.2)") }, "psql")
	n.awaitVerdicts(func() { n.output(n.a, "pgbench", "-h", host, "-U", "postgres", "-i", "-q", "postgres") }, "pgbench")
	out := n.output(n.a, "pgbench", "-h", host, "-U", "postgres", "-c", "8", "-j", "2", "-t", "200", "-M", "prepared",
		"postgres")
	if !strings.Contains(out, "actually processed: 1600/1600") {
		t.Errorf("pgbench: %s", out)
	}
	if sums := sql(`SELECT count(*) FROM (VALUES ((SELECT sum(abalance) FROM pgbench_accounts)), ((SELECT sum(tbalance) FROM pgbench_tellers)),
		((SELECT sum(bbalance) FROM pgbench_branches))) AS sums(s) WHERE s = (SELECT sum(delta) FROM pgbench_history) AND (SELECT count(*) FROM pgbench_history) = 1600`); sums != "3" {
		t.Errorf("%s of 3 sums are right", sums)
	}
	sql("CREATE TABLE numbers AS SELECT i, md5(i::text) AS text FROM generate_series(1, 250000) AS i; CREATE TABLE " +
		"again (LIKE numbers)")
	file := filepath.Join(n.Dir, "numbers")
	sql(`\copy numbers TO '` + file + `'`)
	sql(`\copy again FROM '` + file + `'`)
	if rows := sql("SELECT count(*) FROM numbers NATURAL JOIN again"); rows != "250000" {
		t.Errorf("%s of 250000 rows were imported", rows)
	}
	n.checkVerdicts("postgres", "psql", "pgbench")
}
