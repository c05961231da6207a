// SPDX-License-Identifier: Apache-2.0

package cli

import "github.com/spf13/cobra"

func (a *app) oakestraCommand() *cobra.Command {
	return noun("oakestra", "Examine the Oakestra cluster of this node", a.oakestraCheckCommand())
}

func (a *app) oakestraCheckCommand() *cobra.Command {
	var f agentFlags
	var cluster string
	var services []string
	c := answers(&cobra.Command{
		Use:   "check",
		Short: "Examine whether the cluster works for this worker",
		Long: "Speaks the protocol of a worker to the cluster: connects with the broker, sends queries to the service " +
			"manager, and compares\n" +
			"what the cluster knows of the services here with what runs. Needs no agent: it runs on workers with Oakestra's " +
			"own network\n" +
			"manager, too. It asks for no subnet, and withdraws the interest in services that it looks up. Exits with 1 if " +
			"something is wrong.",
		Example: "  kerb oakestra check\n  kerb oakestra check --cluster 192.0.2.1 --service app.ns.web.test",
		Args:    noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.resolve(cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			checks, err := a.build.CheckOakestra(cmd.Context(), c, cluster, services)
			if err != nil {
				return err
			}
			return a.printChecks(cmd.OutOrStdout(), checks, "that are wrong", "the cluster does not work for this worker")
		},
	})
	f.addPaths(c)
	c.Flags().StringVar(&cluster, "cluster", "", "address of the cluster (default: that of the registration)")
	c.Flags().StringSliceVar(&services, "service", nil, "full names of services to look up, alongside those that run here")
	return c
}
