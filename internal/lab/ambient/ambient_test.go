// SPDX-License-Identifier: Apache-2.0

package ambient

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// newMesh returns a mesh with two pods, of which the second one implements a service.
func newMesh(t *testing.T) Mesh {
	t.Helper()
	sdktest.NeedRoot(t)
	lab, err := netlab.NewIn("kamb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	pods, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return Mesh{Pods: pods, Service: netip.MustParseAddr("10.96.0.10"), Server: pods[1], Ports: []int{80, 443}}
}

// The file is YAML with numeric ports, as ztunnel requires.
func TestWorkloads(t *testing.T) {
	m := newMesh(t)
	var file struct {
		Workloads []struct {
			Name        string
			WorkloadIps []netip.Addr `yaml:"workloadIps"`
			Services    map[string]map[uint16]uint16
		}
		Services []struct {
			Hostname string
			Vips     []string
			Ports    map[uint16]uint16
		}
	}
	if err := yaml.Unmarshal([]byte(m.workloads()), &file); err != nil {
		t.Fatalf("%v in\n%s", err, m.workloads())
	}
	if len(file.Workloads) != 2 || len(file.Services) != 1 {
		t.Fatalf("%+v", file)
	}
	client, server, service := file.Workloads[0], file.Workloads[1], file.Services[0]
	if client.WorkloadIps[0] != m.Pods[0].Addr4() || len(client.Services) != 0 ||
		server.Services["default/"+service.Hostname][443] != 443 || service.Ports[80] != 80 ||
		service.Vips[0] != "/10.96.0.10" {
		t.Errorf("%+v", file)
	}
}

// peer simulates ztunnel's side of the protocol: it receives these pods, and answers the last message with last.
func peer(socket string, pods []*netlab.Host, last string) (namespaces []uint64, err error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: socket})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{8, 1}); err != nil { // the version
		return nil, err
	}
	message, rights := make([]byte, 1024), make([]byte, 64)
	for i := range len(pods) + 1 {
		n, size, _, _, err := conn.ReadMsgUnix(message, rights)
		if err != nil {
			return namespaces, err
		}
		if i < len(pods) {
			name := string(first(first(message[:n]))) // the uid of AddWorkload
			if name != pods[i].Name() {
				return namespaces, fmt.Errorf("pod %q, want %q", name, pods[i].Name())
			}
			inode, err := inodeOf(rights[:size])
			if err != nil {
				return namespaces, err
			}
			namespaces = append(namespaces, inode)
		}
		answer := "\n\x00" // an acknowledgement without an error
		if i == len(pods) {
			answer = last
		}
		if _, err := conn.Write([]byte(answer)); err != nil {
			return namespaces, err
		}
	}
	return namespaces, nil
}

// first returns the bytes field that a message starts with, if its number is 1.
func first(message []byte) []byte {
	number, _, tag := protowire.ConsumeTag(message)
	value, size := protowire.ConsumeBytes(message[max(0, tag):])
	if number != 1 || size < 0 {
		return nil
	}
	return value
}

// inodeOf returns the inode of the namespace file that came with a message.
func inodeOf(rights []byte) (uint64, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(err, errors.New("not one control message"))
	}
	files, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(files) != 1 {
		return 0, errors.Join(err, errors.New("not one file"))
	}
	defer unix.Close(files[0])
	var stat unix.Stat_t
	err = unix.Fstat(files[0], &stat)
	return stat.Ino, err
}

// The pods' namespaces are sent in order, and an error response of ztunnel is returned.
func TestAdmit(t *testing.T) {
	m := newMesh(t)
	dir := t.TempDir()
	a, err := Prepare(m, filepath.Join(dir, "z"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for answer, want := range map[string]string{"\n\x00": "", "\n\x04\n\x02no": "no", "x": "answers"} {
		type result struct {
			namespaces []uint64
			err        error
		}
		done := make(chan result, 1)
		go func() {
			namespaces, err := peer(a.socket, m.Pods, answer)
			done <- result{namespaces, err}
		}()
		err := a.Admit()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("ztunnel answers %q: %v, want %q", answer, err, want)
		}
		r := <-done
		if r.err != nil || len(r.namespaces) != len(m.Pods) {
			t.Fatalf("ztunnel got %v: %v", r.namespaces, r.err)
		}
		for i, pod := range m.Pods {
			var own unix.Stat_t
			if err := unix.Stat(pod.Path(), &own); err != nil || own.Ino != r.namespaces[i] {
				t.Errorf("pod %d: namespace %d, want %d: %v", i, r.namespaces[i], own.Ino, err)
			}
		}
	}
}
