// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// The contract between the agent and control plane processes, described in docs/control-planes.md.
const (
	// ContractVersion is the value of KERB_CONTRACT.
	ContractVersion = 1
	// PathPrefix is the path of the agent's requests; all other paths belong to the module.
	PathPrefix = "/kerb/v1/"
	// ListenFD is the listening socket, MapsFD the socket on which maps arrive.
	ListenFD, MapsFD = 3, 4
	// FillHeader, in a request to compile, names the active map set, whose maps may be filled at once: see fill. The
	// answer repeats the header if they were. A control plane that does not know the header gets a separate fill request.
	FillHeader = "Kerb-Fill"
	// MaxBody is the size of the largest body in either direction, in bytes.
	MaxBody = 8 << 20
)

// CompileRequest is the body of compile.
type CompileRequest struct {
	Config json.RawMessage `json:"config"`
}

// readCompile reads a CompileRequest. The agent's requests contain a config and nothing else, which is cut out: json
// would read it twice.
func readCompile(r *http.Request) (req CompileRequest, err error) {
	var body bytes.Buffer
	body.Grow(int(min(max(0, r.ContentLength), compileAhead)) + bytes.MinRead)
	if _, err := body.ReadFrom(r.Body); err != nil {
		return req, err
	}
	config, begins := bytes.CutPrefix(body.Bytes(), []byte(`{"config":`))
	config, ends := bytes.CutSuffix(config, []byte("}"))
	if begins && ends && json.Valid(config) {
		return CompileRequest{Config: config}, nil
	}
	return req, json.NewDecoder(&body).Decode(&req)
}

// compileAhead limits what is allocated for a body before it has arrived.
const compileAhead = 64 << 10

// MapSetRequest is the body of fill, start and drop.
type MapSetRequest struct {
	MapSet      string          `json:"generation"`
	Config      json.RawMessage `json:"config,omitempty"`
	Attachments []Attachment    `json:"instances,omitempty"` // start only
	Kernel      Kernel          `json:"kernel,omitzero"`     // start only
}

// NoteRequest is the body of note: a value that the data plane noted about a packet, for one of the manifest's notes.
type NoteRequest struct {
	Note  string `json:"note"`
	Value uint64 `json:"value"`
}

// NoteAnswer is the body of the answer to note.
type NoteAnswer struct {
	Name string `json:"name,omitempty"`
}

// MapsMessage comes with the descriptors of the maps that it names, in the same order, or with packet sockets.
type MapsMessage struct {
	MapSet string   `json:"generation,omitempty"`
	Maps   []string `json:"maps,omitzero"`
	Inject []uint32 `json:"inject,omitempty"` // ifindexes of the packet sockets, which replace older ones
	Closed []uint32 `json:"closed,omitempty"` // ifindexes whose packet socket is to be closed
	Client uint64   `json:"client,omitempty"` // number of a program's new connection to the module's socket
}

// ClientMaps asks the agent to send a message to a client, with descriptors of maps of a map set, in this order: a
// control plane is not permitted to send descriptors. The agent sends it once for each client, until 10 s after it has
// connected.
type ClientMaps struct {
	Client  uint64          `json:"client"`
	MapSet  string          `json:"generation"`
	Maps    []string        `json:"maps"`
	Message json.RawMessage `json:"message"`
}

// Problem is the body of error answers.
type Problem struct {
	Field  string `json:"field,omitempty"`
	Reason string `json:"reason"`
}
