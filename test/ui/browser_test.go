// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// browser is a Chromium run by chromedriver: its protocol (W3C WebDriver) is JSON over HTTP.
type browser struct {
	t       *testing.T
	session string // URL

	downloads string // directory
	pid       int    // of chromedriver, whose descendants are the browser
}

// openBrowser skips the test if there is no Chromium.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	driver, err := exec.LookPath("chromedriver")
	if err != nil {
		t.Skip("chromedriver is not installed: make test-ui")
	}
	cmd := exec.Command(driver, "--port=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	var port []string
	for port == nil && lines.Scan() {
		port = regexp.MustCompile(`successfully on port (\d+)`).FindStringSubmatch(lines.Text())
	}
	if port == nil {
		t.Fatal("chromedriver has not said its port")
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	b := &browser{t: t, session: "http://127.0.0.1:" + port[1], downloads: t.TempDir(), pid: cmd.Process.Pid}
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--hide-scrollbars", "--user-data-dir=" + t.TempDir()}
	var opened struct{ SessionID string }
	b.call(http.MethodPost, "/session", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"goog:chromeOptions": map[string]any{"args": args,
			"prefs": map[string]any{"download.default_directory": b.downloads, "download.prompt_for_download": false}},
		"goog:loggingPrefs": map[string]any{"browser": "ALL"}}}}, &opened)
	b.session += "/session/" + opened.SessionID
	t.Cleanup(func() { b.call(http.MethodDelete, "", nil, nil) })
	return b
}

// call makes a WebDriver request, which must succeed.
func (b *browser) call(method, path string, body, into any) {
	b.t.Helper()
	if err := b.try(method, path, body, into); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(method, path string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequest(method, b.session+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, data)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, &struct{ Value any }{into})
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call(http.MethodPost, "/url", map[string]any{"url": url}, nil)
}

// script runs JavaScript in the page; into may be nil.
func (b *browser) script(text string, into any) {
	b.t.Helper()
	b.call(http.MethodPost, "/execute/sync", map[string]any{"script": text, "args": []any{}}, into)
}

// text returns the visible text of the elements that a selector matches.
func (b *browser) text(selector string) (text string) {
	b.t.Helper()
	b.script(fmt.Sprintf("return [...document.querySelectorAll(%q)].map(e => e.innerText).join('\\n')", selector), &text)
	return text
}

// shows waits until elements contain words.
func (b *browser) shows(selector string, words ...string) {
	b.t.Helper()
	for _, w := range words {
		wait.Until(b.t, fmt.Sprintf("%q in %s", w, selector), func() bool { return strings.Contains(b.text(selector), w) },
			func() any { return b.text("main") })
	}
}

// element returns the first element of a selector, once it exists.
func (b *browser) element(selector string) (path string) {
	b.t.Helper()
	wait.Until(b.t, selector, func() bool {
		var found map[string]string
		err := b.try(http.MethodPost, "/element", map[string]any{"using": "css selector", "value": selector}, &found)
		for _, id := range found {
			path = "/element/" + id
		}
		return err == nil
	}, func() any { return b.text("main") })
	return path
}

// click waits until an element can be clicked: an element that moves under the mouse is another one.
func (b *browser) click(selector string) {
	b.t.Helper()
	var err error
	wait.Until(b.t, "click on "+selector, func() bool {
		// WebDriver scrolls it to the top, where the header of the page covers it
		b.script(fmt.Sprintf("document.querySelector(%q)?.scrollIntoView({block: 'center'})", selector), nil)
		err = b.try(http.MethodPost, b.element(selector)+"/click", map[string]any{}, nil)
		return err == nil
	}, func() any { return err })
}

func (b *browser) enter(selector, text string) {
	b.t.Helper()
	b.call(http.MethodPost, b.element(selector)+"/value", map[string]any{"text": text}, nil)
}

// press sends keys to the focused element.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	var actions []any
	for _, k := range keys {
		actions = append(actions, map[string]any{"type": "keyDown", "value": k}, map[string]any{"type": "keyUp", "value": k})
	}
	b.call(http.MethodPost, "/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "keyboard",
		"actions": actions}}}, nil)
}

// devtools sends a command of the DevTools protocol.
func (b *browser) devtools(cmd string, params any) {
	b.t.Helper()
	b.ask(cmd, params, nil)
}

// ask sends a command, and decodes the response.
func (b *browser) ask(cmd string, params, into any) {
	b.t.Helper()
	b.call(http.MethodPost, "/goog/cdp/execute", map[string]any{"cmd": cmd, "params": params}, into)
}

// screen sets the size in pixels, and the colours that the system prefers.
func (b *browser) screen(width, height int, scheme string) {
	b.t.Helper()
	b.devtools("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height,
		"deviceScaleFactor": 1, "mobile": width < 600})
	b.devtools("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{
		"name": "prefers-color-scheme", "value": scheme}}})
}

// screenshot writes the visible part to a PNG file of 256 colours.
func (b *browser) screenshot(file string) {
	b.t.Helper()
	var text string
	b.call(http.MethodGet, "/screenshot", nil, &text)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		b.t.Fatal(err)
	}
	seen, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		b.t.Fatal(err)
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduced(seen)); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, small.Bytes(), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// reduced returns an image with the 256 most frequent colours; all others change to the nearest of these.
func reduced(from image.Image) image.Image {
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) }
	bounds := from.Bounds()
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			count[at(x, y)]++
		}
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	palette := color.Palette{}
	for _, c := range all[:min(256, len(all))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for _, c := range all {
		index[c] = uint8(palette.Index(c))
	}
	out := image.NewPaletted(bounds, palette)
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			out.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return out
}

// logEntries returns the browser's log: script errors, failed requests, and violations of the policy.
func (b *browser) logEntries() (all []string) {
	b.t.Helper()
	var entries []struct{ Level, Message string }
	b.call(http.MethodPost, "/se/log", map[string]any{"type": "browser"}, &entries)
	for _, e := range entries {
		all = append(all, e.Level+" "+e.Message)
	}
	return all
}
