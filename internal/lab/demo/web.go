// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// webCommand returns the web service of the demo, with the same small response on every port.
func webCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "web PORT...",
		Short:   "The web server of the demo",
		Example: "  kerb demo web 8080 9090",
		Hidden:  true,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ports []string) error {
			failed := make(chan error, len(ports))
			for _, port := range ports {
				go func() { failed <- serve(port) }()
			}
			select {
			case err := <-failed:
				return err
			case <-cmd.Context().Done():
				return nil
			}
		},
	}
}

func serve(port string) error {
	server := &http.Server{
		Addr:              net.JoinHostPort("", port),
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "hello %s, this is port %s\n", r.RemoteAddr, port)
		}),
	}
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
