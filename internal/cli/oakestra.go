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
		Short: "Check whether the cluster works for this worker",
		Long: "Uses the worker's protocol with the cluster: connects to the broker, sends queries to the service " +
			"manager, and\n" +
			"compares the cluster's data about the services of this node with the running ones. Needs no agent: it runs on\n" +
			"workers with Oakestra's own network manager, too. It requests no subnet, and withdraws its interest in services\n" +
			"that it looks up. Exits with 1 if there is a problem.",
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
