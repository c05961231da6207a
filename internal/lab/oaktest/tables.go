// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"encoding/json"
	"net/netip"
	"strings"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// tableReply is a reply of the cluster to a table query.
type tableReply struct {
	Name string `json:"app_name"`
	Key  string `json:"query_key"`
	List []struct {
		NS4      string `json:"namespace_ip"`
		NS6      string `json:"namespace_ip_v6"`
		Host     string `json:"host_ip"`
		Port     int    `json:"host_port"`
		Services []struct {
			Type    string `json:"IpType"`
			Address string `json:"Address"`
			Six     string `json:"Address_v6"`
		} `json:"service_ip"`
	} `json:"instance_list"`
}

// learn replaces a service's entries. Instances without all addresses are rejected, one by one.
func (n *NetManager) learn(payload []byte) {
	var in tableReply
	if err := json.Unmarshal(payload, &in); err != nil {
		n.t.Errorf("%s: %v", payload, err)
		return
	}
	keys := map[string]bool{in.Name: true, in.Key: true}
	var all []entry
	for _, i := range in.List {
		var e entry
		four, wrong4 := netip.ParseAddr(i.NS4)
		six, wrong6 := netip.ParseAddr(i.NS6)
		host, wrong := netip.ParseAddr(i.Host)
		e.namespaces, e.node = [2]netip.Addr{four, six}, netip.AddrPortFrom(host, uint16(i.Port))
		for _, s := range i.Services {
			keys[s.Address], keys[s.Six] = true, true
			a, _ := netip.ParseAddr(s.Address)
			b, _ := netip.ParseAddr(s.Six)
			if s.Type == "instance_ip" {
				e.instance = [2]netip.Addr{a, b}
			} else {
				e.services = [2]netip.Addr{a, b}
			}
		}
		if wrong4 == nil && wrong6 == nil && wrong == nil {
			all = append(all, e)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if in.Name != "" {
		n.table[in.Name] = all
	}
	if in.Name != "" && isAddress(in.Key) {
		n.interest(in.Key)
		if len(in.List) > 0 {
			n.interest(in.Name)
		}
	}
	for key := range keys {
		for _, c := range n.waiting[key] {
			close(c)
		}
		delete(n.waiting, key)
	}
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// query queries a service by its name or an address, and waits for the reply. An address without a reply is never
// queried again: only a reply that contains it ends the wait.
func (n *NetManager) query(name, address string) {
	key := name + address
	done := make(chan struct{})
	n.mu.Lock()
	if name != "" {
		n.interest(name)
	}
	unanswered := len(n.waiting[key]) > 0
	if unanswered && name == "" {
		n.mu.Unlock()
		return
	}
	n.waiting[key] = append(n.waiting[key], done)
	n.mu.Unlock()
	n.publish("tablequery/request", struct {
		Name    string `json:"sname"`
		Address string `json:"sip"`
	}{name, address})
	select {
	case <-done:
	case <-time.After(queryLimit):
	}
}

// interest registers an interest, or extends it. An interest in an address is not extended. The caller holds n.mu.
func (n *NetManager) interest(name string) {
	if timer := n.interests[name]; timer != nil {
		if !isAddress(name) {
			timer.Reset(n.InterestedFor)
		}
		return
	}
	n.interests[name] = time.AfterFunc(n.InterestedFor, func() { n.expire(name) })
	n.client.Subscribe("jobs/"+name+"/updates_available", 1, n.handleNotice)
}

// expire ends an interest, unless an instance of the service is here.
func (n *NetManager) expire(name string) {
	n.mu.Lock()
	timer := n.interests[name]
	for key := range n.hosted {
		if key.service == name {
			timer.Reset(n.InterestedFor)
			n.mu.Unlock()
			return
		}
	}
	delete(n.interests, name)
	delete(n.table, name)
	client := n.client
	n.mu.Unlock()
	n.publish("interest/remove", map[string]string{"appname": name})
	client.Unsubscribe("jobs/" + name + "/updates_available")
}

func (n *NetManager) handleNotice(_ mqtt.Client, m mqtt.Message) {
	go n.query(strings.Split(m.Topic(), "/")[1], "")
}

// find implements tables.
func (n *NetManager) find(virtual netip.Addr) []entry {
	all, asked := n.lookup(virtual)
	if len(all) == 0 && !asked {
		n.query("", virtual.String())
		all, _ = n.lookup(virtual)
	}
	return all
}

// lookup also reports whether the address has an interest: then it is not queried again.
func (n *NetManager) lookup(virtual netip.Addr) (all []entry, asked bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	family := 0
	if virtual.Is6() {
		family = 1
	}
	for name, entries := range n.table {
		for _, e := range entries {
			if e.services[family] == virtual || e.instance[family] == virtual {
				all = append(all, e)
				n.interest(name)
			}
		}
	}
	return all, n.interests[virtual.String()] != nil
}

// own implements tables.
func (n *NetManager) own(namespace netip.Addr) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	family := 0
	if namespace.Is6() {
		family = 1
	}
	for _, entries := range n.table {
		for _, e := range entries {
			if e.namespaces[family] == namespace {
				return e.instance[family], true
			}
		}
	}
	return netip.Addr{}, false
}
