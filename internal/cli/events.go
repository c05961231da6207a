// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func (a *app) eventsCommand() *cobra.Command {
	limit, of, follow := 100, "", false
	c := answers(&cobra.Command{
		Use:   "events",
		Short: "Show events: services that appeared or disappeared, control planes that exited, rejected changes, rollbacks",
		Long: `Shows the newest events, oldest first: conditions that became False or recovered, control planes that started or
exited, changes that were refused or rolled back, starts of the agent. Repetitions within 10 minutes are one line,
with their number. -o json prints one object per line.

The agent keeps the newest 500 events, 100 of a resource: if it drops some before --follow has read them, their number
is printed on standard error.`,
		Example: "  kerb events\n  kerb events --follow\n  kerb events --of service/web",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			if follow {
				q.Set("follow", "true")
			}
			if strings.EqualFold(of, v1alpha1.EventAgent) {
				q.Set("kind", v1alpha1.EventAgent)
			} else if err := selectResource(q, of); err != nil {
				return err
			}
			body, err := a.stream(cmd.Context(), "/v1/events?"+q.Encode())
			if err != nil {
				return err
			}
			defer body.Close()
			return ignoreInterrupt(cmd.Context(), a.printEvents(cmd.OutOrStdout(), cmd.ErrOrStderr(), body))
		},
	})
	c.Flags().IntVar(&limit, "limit", limit, "at most this many, up to 500")
	c.Flags().StringVar(&of, "of", "", "only events of this kind, or of this resource: agent, service, service/web")
	c.Flags().BoolVar(&follow, "follow", false, "also those that follow, until interrupted")
	return c
}

// printEvents prints each event when it arrives, hence in columns of fixed width.
func (a *app) printEvents(w, notes io.Writer, body io.Reader) error {
	return eachLine(body, func(e v1alpha1.Event) (err error) {
		switch {
		case e.Error != "":
			return errors.New(e.Error)
		case e.Lost > 0:
			fmt.Fprintf(notes, "events are missing: %d came faster than they were read, and the agent has forgotten them; "+
				"--of follows those of one resource\n", e.Lost)
			return nil
		case a.output != "table":
			return json.NewEncoder(w).Encode(e)
		}
		_, err = fmt.Fprintf(visible{coloured(w)}, "%s  %-24s  %-28s  %s\n", localTime(e.Time), eventOf(e), eventDetail(e),
			oneLine(e.Message))
		return err
	})
}

func eventOf(e v1alpha1.Event) string {
	return strings.TrimSuffix(strings.ToLower(e.Kind)+"/"+e.Name, "/")
}

func eventDetail(e v1alpha1.Event) string {
	if e.Count > 1 {
		return fmt.Sprintf("%s %s, %d times", e.Type, e.Reason, e.Count)
	}
	return e.Type + " " + e.Reason
}
