// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// Lines of a stream are printed when they arrive: the writer waits for the first before it sends the second.
func TestQueryOfAStream(t *testing.T) {
	fromModule, module := io.Pipe()
	seen, out := io.Pipe()
	done := make(chan error)
	go func() {
		a := &app{output: "table"}
		done <- a.printAnswer(out, &answer{fromModule, true})
	}()
	for _, n := range []string{"1", "2"} {
		go func() { _, _ = io.WriteString(module, `{"n":`+n+"}\n") }()
		want := "n=" + n + "\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(seen, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v", got, err)
		}
	}
	module.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Each value of a stream is printed as a line of text, or in JSON as the module wrote it.
func TestQueryOfEvents(t *testing.T) {
	const event = `{"rule":"#1","time":"2026-01-02T03:04:05Z","verdict":"would drop","source":"192.0.2.1:80","icmpType":0,` +
		`"gone":null,"none":"","tags":["a","b"]}` + "\n"
	const line = `2026-01-02T03:04:05Z rule=#1 verdict="would drop" source=192.0.2.1:80 icmpType=0 tags=(a, b)` + "\n"
	for output, want := range map[string]string{"table": line + "[1]\nname=\"\\x1b[2J=\"\n", "json": ""} {
		text := event + "[1]\n" + `{"name":"\u001b[2J="}` + "\n"
		if output == "json" {
			want = text
		}
		var out bytes.Buffer
		a := &app{output: output}
		err := a.printAnswer(&out, &answer{io.NopCloser(strings.NewReader(text)), true})
		if err != nil || out.String() != want {
			t.Errorf("%s: %s, %v", output, out.String(), err)
		}
	}
}

// With -o yaml, the output is YAML or an error.
func TestQueryInYAML(t *testing.T) {
	for text, want := range map[string]string{"{\"a\":1}\n{\"a\":2}\n": "---\na: 1\n---\na: 2\n", "": ""} {
		var out bytes.Buffer
		a := &app{output: "yaml"}
		if err := a.printAnswer(&out, &answer{io.NopCloser(strings.NewReader(text)), true}); err != nil ||
			out.String() != want {
			t.Errorf("%q: %q, %v", text, out.String(), err)
		}
	}
	for text, stream := range map[string]bool{"no JSON\n": false, "{\"n\":": true} {
		var out bytes.Buffer
		a := &app{output: "yaml"}
		if err := a.printAnswer(&out, &answer{io.NopCloser(strings.NewReader(text)), stream}); err == nil || out.Len() > 0 {
			t.Errorf("%q: %q, %v", text, out.String(), err)
		}
	}
}

func TestQueryOfValues(t *testing.T) {
	for text, want := range map[string]string{
		`[{"a":1,"b":"x"}]`:                            "A  B\n1  x\n",
		`[{"b":{"y":2,"x":1},"a":["p","q"]},{"a":[]}]`: "B         A\ny=2, x=1  p, q\n-         -\n",
		`[{"a":{"x":[1]}}]`:                            "A\nx=(1)\n",
		`{"rules":[{"name":"web","packets":9007199254740993,"none":null},{"name":"admin","packets":0}],"mode":"on","default":[{"n":1}]}`: "mode:  on\n\nrules:\nNAME   PACKETS\nweb    9007199254740993\nadmin  0\n\ndefault:\nN\n1\n",
		`{"a":{"b":[{"c":1}]},"d":"x"}`: "d:  x\n\na.b:\nC\n1\n",
		"no JSON\n":                     "no JSON\n",
	} {
		var out bytes.Buffer
		a := &app{output: "table"}
		if err := a.printAnswer(&out, &answer{io.NopCloser(strings.NewReader(text)), false}); err != nil ||
			out.String() != want {
			t.Errorf("%q: %q, %v", text, out.String(), err)
		}
	}
}

// endless is a control plane with an endless response.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func (*endless) Close() error { return nil }

func TestQueryWithoutEnd(t *testing.T) {
	body := &endless{}
	a := &app{output: "table"}
	err := a.printAnswer(io.Discard, &answer{body, false})
	if err == nil || !strings.Contains(err.Error(), "more than 64 MiB") || body.read > 2*maxAnswer {
		t.Errorf("after %d bytes: %v", body.read, err)
	}
}
