// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Messages of Oakestra's table query, as its NetManager and cluster service manager exchange them over MQTT 3.1.1.
type (
	tableRequest struct {
		Name    string `json:"sname"`
		Address string `json:"sip"`
	}
	tableResult struct {
		App       string          `json:"app_name"`
		Instances []tableInstance `json:"instance_list"`
		Key       string          `json:"query_key"` // the name or address of the request
	}
	tableInstance struct {
		Number     int              `json:"instance_number"`
		Address    string           `json:"namespace_ip"`
		AddressV6  string           `json:"namespace_ip_v6"`
		Host       string           `json:"host_ip"`
		HostPort   int              `json:"host_port"`
		ServiceIPs []tableServiceIP `json:"service_ip"`
	}
	tableServiceIP struct {
		Type      string `json:"IpType"` // RR, or instance_ip
		Address   string `json:"Address"`
		AddressV6 string `json:"Address_v6"`
	}
	interestRemove struct {
		App string `json:"appname"`
	}
)

func requestTopic(node string) string  { return "nodes/" + node + "/net/tablequery/request" }
func resultTopic(node string) string   { return "nodes/" + node + "/net/tablequery/result" }
func interestTopic(node string) string { return "nodes/" + node + "/net/interest/remove" }
func updateTopic(app string) string    { return "jobs/" + app + "/updates_available" }

const maxAppName = 201

// appName matches names, of at most maxAppName bytes, that can be part of a topic and of a virtual service's name.
// (Counting in an expression would make it a hundred times larger.)
var appName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func decodeResult(data []byte) (tableResult, error) {
	var r tableResult
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("table query: the answer cannot be understood: %w", err)
	}
	if r.App != "" && (len(r.App) > maxAppName || !appName.MatchString(r.App)) {
		return r, fmt.Errorf("table query: %q is not the name of a service", r.App)
	}
	return r, nil
}

// translation makes virtual services of answers.
type translation struct {
	ranges []netip.Prefix      // only addresses in these become virtual addresses
	own    map[netip.Addr]bool // addresses of this node
}

// maxInstances is what the schema of a VirtualService allows.
const maxInstances, maxAddresses = 10000, 64

// spec translates an answer. What is not usable is left out: half an answer is better than none.
func (t translation) spec(r tableResult) v1.VirtualServiceSpec {
	var s v1.VirtualServiceSpec
	seen := map[netip.Addr]bool{}
	sort.SliceStable(r.Instances, func(i, j int) bool { return r.Instances[i].Number < r.Instances[j].Number })
	for _, i := range r.Instances {
		name := strconv.Itoa(i.Number)
		twice := len(s.Instances) > 0 && s.Instances[len(s.Instances)-1].Name == name
		if i.Number < 0 || twice || len(s.Instances) == maxInstances {
			continue
		}
		s.Instances = append(s.Instances, v1.VirtualInstance{Name: name, Addresses: t.instanceAddresses(i),
			Node: t.node(i.Host), Weight: 1})
		for _, ip := range i.ServiceIPs {
			for _, text := range []string{ip.Address, ip.AddressV6} {
				t.addAddress(&s, seen, text, ip.Type, name)
			}
		}
	}
	return s
}

func (t translation) instanceAddresses(i tableInstance) []string {
	var out []string
	for n, text := range []string{i.Address, i.AddressV6} {
		if a, err := parseUnicast(text); err == nil && a.Is4() == (n == 0) && !t.virtual(a) {
			out = append(out, a.String())
		}
	}
	return out
}

// node is where an instance runs, empty for this node.
func (t translation) node(host string) string {
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	a = a.Unmap()
	if err != nil || t.own[a] {
		return ""
	}
	if _, err := parseUnicast(a.String()); err != nil { // a tunnel must not send to a multicast or unspecified address
		return ""
	}
	return a.String()
}

// addAddress takes as many addresses as a service may have, and one of each family for each instance: more would not
// fit an update of control planes.
func (t translation) addAddress(s *v1.VirtualServiceSpec, seen map[netip.Addr]bool, text, kind, instance string) {
	a, err := parseUnicast(text)
	if err != nil || !t.virtual(a) || seen[a] || len(s.Addresses) >= maxAddresses+2*len(s.Instances) {
		return
	}
	seen[a] = true
	v := v1.VirtualAddress{Address: a.String()}
	switch strings.ToLower(kind) {
	case "instance_ip":
		v.Instance = instance
	case "closest":
		v.Policy = v1.PolicyClosest
	default:
		v.Policy = v1.PolicyRoundRobin
	}
	s.Addresses = append(s.Addresses, v)
}

func (t translation) virtual(a netip.Addr) bool {
	return slices.ContainsFunc(t.ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
