// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Messages between a worker's network manager and the cluster service manager, as JSON over MQTT 3.1.1 with QoS 1.
type (
	subnetRequest struct {
		Method string `json:"METHOD"`
	}
	subnetResult struct {
		Address  string `json:"address"`
		Address6 string `json:"addressv6"`
	}
	tableRequest struct {
		Name    string `json:"sname"`
		Address string `json:"sip"`
	}
	tableResult struct {
		App       string       `json:"app_name"`
		Instances tableEntries `json:"instance_list"`
		Key       string       `json:"query_key"` // the name or address of the request
	}
	tableEntry struct {
		Number   *int             `json:"instance_number"`
		Worker   string           `json:"worker_id"` // empty after a restart of the service manager
		Address  string           `json:"namespace_ip"`
		Address6 string           `json:"namespace_ip_v6"`
		Host     string           `json:"host_ip"`
		Port     any              `json:"host_port"` // a number or a string
		Virtual  virtualAddresses `json:"service_ip"`
	}
	tableEntries     []tableEntry
	virtualAddresses []virtualAddress
	virtualAddress   struct {
		Type     string `json:"IpType"` // RR or instance_ip
		Address  string `json:"Address"`
		Address6 string `json:"Address_v6"`
	}
	// instanceStatus is service/deployed, or service/address-changed if only Port and Host are set.
	instanceStatus struct {
		App      string `json:"appname"`
		Status   string `json:"status"`
		Number   int    `json:"instance_number"`
		Address  string `json:"nsip"`
		Address6 string `json:"nsipv6"`
		Port     string `json:"host_port"` // the service manager converts it to a number
		Host     string `json:"host_ip"`
	}
	updateNotice struct {
		Type string `json:"type"`
	}
	interestRemove struct {
		App string `json:"appname"`
	}
)

// Topics below nodes/ID/net/.
const (
	topicSubnet         = "subnet"
	topicSubnetResult   = "subnetwork/result"
	topicDeployed       = "service/deployed"
	topicAddressChanged = "service/address-changed"
	topicTableRequest   = "tablequery/request"
	topicTableResult    = "tablequery/result"
	topicInterestRemove = "interest/remove"
)

const updatePrefix, updateSuffix = "jobs/", "/updates_available"

func updateTopic(app string) string { return updatePrefix + app + updateSuffix }

// appName matches names that can be part of a topic and of a virtual service's name. Their length is limited to
// maxAppName bytes separately, as a repetition count would make the compiled expression a hundred times larger.
var appName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

const maxAppName = 201

// Limits of received messages.
const (
	maxMessage   = 4 << 20
	maxInstances = 10000
)

// decode returns an *invalid that names the field if data does not match v.
func decode(data []byte, v any) error {
	if len(data) > maxMessage {
		return &invalid{"payload", fmt.Sprintf("has %d bytes, more than %d", len(data), maxMessage)}
	}
	err := json.Unmarshal(data, v)
	var wrong *invalid
	if err == nil || errors.As(err, &wrong) {
		return err
	}
	return decodeError("", err)
}

// decodeError returns the error for JSON that does not match the type of a field, or of the payload.
func decodeError(field string, err error) error {
	var wrong *json.UnmarshalTypeError
	var inner *invalid
	switch {
	case errors.As(err, &inner):
		return &invalid{field + "." + inner.field, inner.reason}
	case !errors.As(err, &wrong):
		return &invalid{cmp.Or(field, "payload"), err.Error()}
	case field != "" && wrong.Field != "":
		field += "."
	}
	return &invalid{cmp.Or(field+wrong.Field, "payload"), "must not be a JSON " + wrong.Value}
}

// decodeList decodes a list with a limit, so that a hostile one cannot exhaust the memory.
func decodeList[T any](field string, data []byte, most int) (all []T, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	switch start, err := d.Token(); {
	case err != nil || start == nil:
		return nil, err
	case start != json.Delim('['):
		return nil, &invalid{field, "must be a JSON array"}
	}
	for all = []T{}; d.More(); {
		if len(all) == most {
			return nil, &invalid{field, fmt.Sprintf("has more than %d entries", most)}
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return nil, decodeError(fmt.Sprintf("%s[%d]", field, len(all)), err)
		}
		all = append(all, v)
	}
	return all, nil
}

func (t *tableEntries) UnmarshalJSON(data []byte) (err error) {
	*t, err = decodeList[tableEntry]("instance_list", data, maxInstances)
	return err
}

func (v *virtualAddresses) UnmarshalJSON(data []byte) (err error) {
	*v, err = decodeList[virtualAddress]("service_ip", data, maxAddresses)
	return err
}

// Networks from which the root service manager assigns subnets for services.
var (
	nodeNetworks  = netip.MustParsePrefix("10.16.0.0/12")
	nodeNetworks6 = netip.MustParsePrefix("fc00::/7")
)

// Prefix lengths of subnets, which Oakestra's messages do not contain.
const subnetBits, subnetBits6 = 26, 120

// decodeSubnet returns the subnets of a node. They must not be in the ranges of virtual addresses.
func decodeSubnet(data []byte, virtual []netip.Prefix) (four, six netip.Prefix, err error) {
	var r subnetResult
	if err := decode(data, &r); err != nil {
		return four, six, err
	}
	four, err = parseSubnet("address", r.Address, nodeNetworks, subnetBits, virtual)
	if err == nil {
		six, err = parseSubnet("addressv6", r.Address6, nodeNetworks6, subnetBits6, virtual)
	}
	return four, six, err
}

func parseSubnet(field, text string, within netip.Prefix, bits int, virtual []netip.Prefix) (netip.Prefix, error) {
	a, err := netip.ParseAddr(text)
	p := netip.PrefixFrom(a, bits)
	overlaps := func(v netip.Prefix) bool { return v.Overlaps(p) }
	if err != nil || !within.Contains(a) || p != p.Masked() || slices.ContainsFunc(virtual, overlaps) {
		return p, &invalid{field, fmt.Sprintf("%q is not the address of a /%d network of nodes", text, bits)}
	}
	return p, nil
}

// decodeTable decodes and validates a reply. Virtual addresses are those in ranges.
func decodeTable(data []byte, ranges []netip.Prefix) (r tableResult, err error) {
	if err := decode(data, &r); err != nil {
		return r, err
	}
	switch {
	case r.Key == "":
		return r, &invalid{"query_key", "missing"}
	case r.App != "" && (len(r.App) > maxAppName || !appName.MatchString(r.App)):
		return r, &invalid{"app_name", fmt.Sprintf("%q is not the name of a service", r.App)}
	case r.Instances == nil:
		return r, &invalid{"instance_list", "missing"}
	}
	seen := map[int]bool{}
	for i, e := range r.Instances {
		field := fmt.Sprintf("instance_list[%d]", i)
		if e.Number == nil || *e.Number < 0 {
			return r, &invalid{field + ".instance_number", "missing or negative"}
		}
		if seen[*e.Number] {
			return r, &invalid{field + ".instance_number", fmt.Sprintf("%d is there twice", *e.Number)}
		}
		seen[*e.Number] = true
		l, err := e.locate(field)
		if err != nil {
			return r, err
		}
		for n, a := range []netip.Addr{l.address, l.address6} {
			if inNetworks(ranges, a) {
				name := []string{"namespace_ip", "namespace_ip_v6"}[n]
				return r, &invalid{field + "." + name, fmt.Sprintf("%s is a virtual address", a)}
			}
		}
		if err := e.checkVirtual(field, ranges); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Networks of virtual addresses of the root service manager. Addresses outside the ranges of this worker are ignored.
var serviceNetworks = []netip.Prefix{netip.MustParsePrefix("10.30.0.0/16"), netip.MustParsePrefix("fdff::/16")}

func inNetworks(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// checkVirtual validates the virtual addresses of an entry. A service may lack one of either version.
func (e tableEntry) checkVirtual(field string, ranges []netip.Prefix) error {
	for i, v := range e.Virtual {
		for n, text := range []string{v.Address, v.Address6} {
			a, err := netip.ParseAddr(text)
			if text != "" && text != noAddress && (err != nil || !inNetworks(ranges, a) && !inNetworks(serviceNetworks, a)) {
				return &invalid{fmt.Sprintf("%s.service_ip[%d].%s", field, i, []string{"Address", "Address_v6"}[n]),
					fmt.Sprintf("%q is not an address in the ranges of this worker; see oakestra.ranges", text)}
			}
		}
	}
	return nil
}

// noAddress is NetManager's text for a unikernel without an IPv6 address.
const noAddress = "<nil>"

// location is where the cluster locates an instance. Addresses that it does not know are invalid.
type location struct {
	worker            string
	address, address6 netip.Addr
	host              netip.Addr
	port              string
}

// locate validates an entry of a reply, and returns its location.
func (e tableEntry) locate(field string) (location, error) {
	l := location{worker: e.Worker}
	for _, a := range []struct {
		name, text string
		to         *netip.Addr
		is4        bool
	}{{"namespace_ip", e.Address, &l.address, true}, {"namespace_ip_v6", e.Address6, &l.address6, false},
		{"host_ip", strings.Trim(e.Host, "[]"), &l.host, false}} {
		if a.text == "" || a.text == noAddress {
			continue
		}
		addr, err := netip.ParseAddr(a.text)
		addr = addr.Unmap()
		_, unusable := parseUnicast(addr.String())
		if err != nil || a.to != &l.host && (addr.Is4() != a.is4 || unusable != nil) {
			return l, &invalid{field + "." + a.name, fmt.Sprintf("%q is not an address that it may be", a.text)}
		}
		*a.to = addr
	}
	switch port := e.Port.(type) {
	case nil:
	case float64:
		l.port = strconv.FormatFloat(port, 'f', -1, 64)
	case string:
		l.port = port
	default:
		return l, &invalid{field + ".host_port", "is neither a number nor text"}
	}
	if n, err := strconv.ParseUint(l.port, 10, 16); l.port != "" && (err != nil || n == 0) {
		return l, &invalid{field + ".host_port", fmt.Sprintf("%q is not a port", l.port)}
	}
	return l, nil
}

func decodeNotice(data []byte) error {
	var n updateNotice
	if err := decode(data, &n); err != nil {
		return err
	}
	if n.Type != "DEPLOYMENT" && n.Type != "UNDEPLOYMENT" {
		return &invalid{"type", fmt.Sprintf("%q is neither DEPLOYMENT nor UNDEPLOYMENT", n.Type)}
	}
	return nil
}
