// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// acceptForwarded adds iptables rules that accept forwarded packets from and to the bridge, like NetManager, since
// Docker or ufw drop them by the policy of chain FORWARD; with want false it removes them. A rule in another table
// would have no effect: a packet that one table accepts can still be dropped by another. It does not change chains that
// the operator created with nft.
func acceptForwarded(group uint32, bridge string, want bool) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil // without nf_tables in the kernel, no policy drops packets
	}
	changed := false
	for _, chain := range chains {
		family := chain.Table.Family
		if chain.Name != "FORWARD" || chain.Table.Name != "filter" || chain.Policy == nil ||
			family != nftables.TableFamilyIPv4 && family != nftables.TableFamilyIPv6 {
			continue
		}
		did, err := acceptInChain(c, chain, newTable(group).Name, bridge, want && *chain.Policy == nftables.ChainPolicyDrop)
		if err != nil {
			return fmt.Errorf("rules of iptables' chain FORWARD: %w", err)
		}
		changed = changed || did
	}
	if !changed {
		return nil
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("rules of iptables' chain FORWARD: %w", err)
	}
	return nil
}

// acceptInChain adds two rules to a chain, or removes them. They use only expressions that iptables can list.
func acceptInChain(c *nftables.Conn, chain *nftables.Chain, mark, bridge string, want bool) (changed bool, err error) {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return false, err
	}
	right := mark + " " + bridge // the bridge may have had another name
	stale := false
	ours := slices.DeleteFunc(rules, func(r *nftables.Rule) bool {
		comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
		mine := comment == mark || strings.HasPrefix(comment, mark+" ")
		stale = stale || mine && comment != right
		return !mine
	})
	keys := []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME}
	if want && len(ours) == len(keys) && !stale || !want && len(ours) == 0 {
		return false, nil
	}
	for _, r := range ours {
		err = errors.Join(err, c.DelRule(r))
	}
	if !want {
		return true, err
	}
	for _, key := range keys {
		c.InsertRule(&nftables.Rule{Table: chain.Table, Chain: chain,
			UserData: userdata.AppendString(nil, userdata.TypeComment, right),
			Exprs: []expr.Any{&expr.Meta{Key: key, Register: 1}, equal([]byte(bridge + "\x00")),
				&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}}})
	}
	return true, err
}
