// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// Names from other programs, such as that of an interface, are text in the page, whatever they contain.
func TestHostileNames(t *testing.T) {
	b := openBrowser(t)
	n := nodetest.New(t)
	n.Start()
	const hostile = `<img src=x onerror="document.title='owned'">`
	odd := node.Module("odd", "counter", "", nil)
	odd.Spec.Attach = v1.Attach{Interfaces: []string{hostile}}
	n.Apply(odd)
	b.screen(1280, 860, "light")
	b.open(serveUI(t, n))
	b.shows("#verdict", "1 problem to see to")
	b.shows(".problem", "Module odd", hostile, "change 1")
	b.script("location.hash = '#/modules/odd'", nil)
	b.shows("main", hostile)
	b.script("location.hash = '#/changes/1'", nil)
	b.shows(".diff .plus", hostile)
	b.shows("main", "This page is read-only")
	b.script("location.hash = '#/services/"+`%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D1%22%3E`+"'", nil)
	b.shows("h1", `<img src=x onerror="document.title=1">`)
	// also if a part of the page inserted it as an element, which none does
	b.script("const d = document.createElement('div'); d.innerHTML = "+fmt.Sprintf("%q", hostile)+
		"; document.body.append(d)", nil)
	b.shows("main", "There is no such service")
	var title string
	b.script("return document.title + document.querySelectorAll('main img, main script').length", &title)
	if title != "Kerb0" {
		t.Errorf("the page has run a name: %q", title)
	}
	said := strings.Join(b.logEntries(), "\n")
	if !strings.Contains(said, "violates the following Content Security Policy") {
		t.Errorf("the policy has not refused an event handler: %s", said)
	}
}

// Values that a resource takes from a file of secrets are in no response.
func TestNoSecrets(t *testing.T) {
	n := nodetest.New(t)
	n.Start()
	const key = "00112233445566778899aabbccddeeff"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Lab.AddUnderlay(); err != nil {
		t.Fatal(err)
	}
	tunnel := node.Module("tun", "tunnel", "*", map[string]any{"nodes": []any{map[string]any{"address": "192.0.2.2"}},
		"keys": []any{map[string]any{"id": 1, "key": map[string]any{"fromFile": file}}}})
	n.Apply(tunnel)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := http.Client{Jar: jar}
	get := func(url string) string {
		t.Helper()
		answer, err := browser.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var text []byte
		if strings.HasSuffix(url, "/stream") { // has no end
			text, err = bufio.NewReader(answer.Body).ReadBytes('\n')
		} else {
			text, err = io.ReadAll(answer.Body)
		}
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s answers %s, %v: %s", url, answer.Status, err, text)
		}
		return string(text)
	}
	first := serveUI(t, n)
	page := strings.Split(first, "/?")[0] + regexp.MustCompile(`url=([^"]+)`).FindStringSubmatch(get(first))[1]
	for _, path := range []string{"stream", "v1/modules", "v1/modules/tun", "v1/modules/tun/nodes", "v1/changes",
		"v1/changes/1", "v1/status", "v1/chains"} {
		text := get(page + path)
		if strings.Contains(text, key) {
			t.Errorf("%s has a key: %s", path, text)
		}
		if path == "v1/modules/tun" && !strings.Contains(text, file) {
			t.Errorf("the module has not the key's file: %s", text)
		}
	}
}
