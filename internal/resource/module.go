// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// Module is the kind of packages that are deployed.
var Module = &Definition[v1alpha1.Module]{
	Name:     v1alpha1.KindModule,
	Short:    "Modules: packages deployed on the node",
	Aliases:  []string{"mod"},
	Kernel:   true,
	Complete: setModuleDefaults,
	Columns: []Column[v1alpha1.Module]{
		{Header: "PACKAGE", Cell: func(m *v1alpha1.Module) any { return m.Spec.Package }},
		{Header: "VERSION", Cell: func(m *v1alpha1.Module) any { return Status(m.Status).Package.Version }},
		{Header: "READY", Cell: func(m *v1alpha1.Module) any { return Ready(Status(m.Status).Conditions) }},
		{Header: "POINTS", Cell: func(m *v1alpha1.Module) any { return len(Status(m.Status).Attachments) }},
		{Header: "MEMORY", Cell: func(m *v1alpha1.Module) any { return pkgs.FormatBytes(Status(m.Status).Memory) }},
		{Header: "COST", Cell: func(m *v1alpha1.Module) any { return worstCost(Status(m.Status).Cost) }},
		{Header: "DROPS", Cell: func(m *v1alpha1.Module) any { return allDrops(Status(m.Status).Drops) }},
		{Header: "HOOK", Wide: true, Cell: func(m *v1alpha1.Module) any { return m.Spec.Hook }},
		{Header: "PRIORITY", Wide: true, Cell: func(m *v1alpha1.Module) any { return m.Spec.Order.Priority }},
		{Header: "FAILS", Wide: true, Cell: func(m *v1alpha1.Module) any { return m.Spec.FailurePolicy }},
		{Header: "SERVICES", Wide: true, Cell: func(m *v1alpha1.Module) any { return m.Spec.Attach.Services }},
		{Header: "INTERFACES", Wide: true, Cell: func(m *v1alpha1.Module) any {
			return strings.Join(m.Spec.Attach.Interfaces, ",")
		}},
	},
}

// setModuleDefaults sets the defaults that the schema states.
func setModuleDefaults(m *v1alpha1.Module, given map[string]any) error {
	if m.Spec.Hook == "" {
		m.Spec.Hook = v1alpha1.HookAuto
	}
	spec, _ := given["spec"].(map[string]any)
	order, _ := spec["order"].(map[string]any)
	if _, given := order["priority"]; !given {
		m.Spec.Order.Priority = v1alpha1.DefaultPriority
	}
	return nil
}

// worstCost is the time that a module adds to the most expensive kind of packet.
func worstCost(c *v1alpha1.Cost) string {
	if c == nil || len(c.Latency) == 0 {
		return ""
	}
	worst := 0.0
	for _, l := range c.Latency {
		worst = max(worst, l.Worst)
	}
	return FormatCost(&worst)
}

// FormatCost formats nanoseconds for tables; unknown ones are empty.
func FormatCost(n *float64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%.0f ns", *n)
}

func allDrops(drops []v1alpha1.Drop) (n uint64) {
	for _, d := range drops {
		n += d.Packets
	}
	return n
}
