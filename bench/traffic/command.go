// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/modules/classifier"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Command returns the subcommands of `kerb model` that read captures or record.
func Command() *cobra.Command {
	c := &cobra.Command{Use: "model", Short: "Extract feature tables from traffic, and replay captures through models"}
	c.AddCommand(windowsCommand(), recordCommand(), replayCommand(), sendCommand())
	return c
}

// settings are flags that the commands share.
type settings struct {
	options Options
	peer    bool
	local   []string
	label   []string
	labels  string
	normal  string
	out     string
}

func (s *settings) addOptions(c *cobra.Command) {
	o, f := &s.options, c.Flags()
	f.DurationVar(&o.Window, "window", 10*time.Second, "length of a window")
	f.BoolVar(&o.Sliding, "sliding", false, "windows advance by a quarter of their length")
	f.StringVar(&o.Frames, "frames", "ethernet", "rpl: encapsulation of 802.15.4 frames in Ethernet captures: ethernet "+
		"or zep")
	f.Uint16Var(&o.EtherType, "ether-type", 0x809a, "rpl: EtherType of frames inside Ethernet")
	f.Uint16Var(&o.Port, "port", 17754, "rpl: UDP port of ZEP")
	f.BoolVar(&o.Checksum, "checksum", false, "rpl: frames inside Ethernet end with their FCS")
	f.DurationVar(&o.Repeat, "repeats", 250*time.Millisecond, "rpl: how long frames with the same sequence number "+
		"count as one message")
	f.BoolVar(&o.CountSecured, "secured", false, "rpl: count encrypted frames")
	f.BoolVar(&s.peer, "peer", false, "flow: count per remote address, not per flow")
	f.StringSliceVar(&s.local, "local", nil, "flow: addresses or prefixes of the service")
}

func (s *settings) addLabels(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&s.label, "label", nil, "CLASS=SOURCE,...: class of all windows of these sources; may be repeated")
	f.StringVar(&s.labels, "labels", "", "file with lines CLASS SOURCE [FROM TO], in seconds as in the column time")
	f.StringVar(&s.normal, "normal", "normal", "class of all other windows")
}

// prepare checks the combination of flags.
func (s *settings) prepare(extractor string) (*labels, error) {
	o := &s.options
	o.Extractor, o.ByPeer = extractor, s.peer
	if classifier.Features[extractor] == nil {
		return nil, fmt.Errorf("extractor %q: must be flow or rpl", extractor)
	}
	if o.Frames != "ethernet" && o.Frames != "zep" {
		return nil, fmt.Errorf("frames %q: must be ethernet or zep", o.Frames)
	}
	if o.Window < 100*time.Millisecond || o.Window > time.Hour {
		return nil, fmt.Errorf("window %v: must be from 100ms to 1h", o.Window)
	}
	for _, text := range s.local {
		p, err := sdk.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("local %q: neither an address nor a prefix", text)
		}
		o.Local = append(o.Local, p)
	}
	if extractor == "flow" && len(o.Local) == 0 {
		return nil, fmt.Errorf("extractor flow needs --local with the addresses of the service")
	}
	return parseLabels(s.normal, s.label, s.labels)
}

func windowsCommand() *cobra.Command {
	var s settings
	var extractor string
	c := &cobra.Command{
		Use:   "windows CAPTURE",
		Short: "Extract the feature table of a capture, as the data plane counts it",
		Long: "Reads a capture (pcap, pcapng) and writes one row per source and window, with all features of the " +
			"extractor, and the class\nif labels are given. \"kerb model train own\" reads the table. Windows start at " +
			"multiples of their length, by the capture's\nclock.",
		Example: "  kerb model windows net.pcap --extractor rpl --window 10s --labels net.labels -o windows.csv\n" +
			"  kerb model windows web.pcapng --extractor flow --local 10.0.0.2 --peer --label flood=192.0.2.7",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := s.prepare(extractor)
			if err != nil {
				return err
			}
			return s.write(cmd, extractor, l, func(t *table) error { return s.options.Windows(args[0], t.add) })
		},
	}
	c.Flags().StringVar(&extractor, "extractor", "rpl", "feature extractor: rpl or flow")
	c.Flags().StringVarP(&s.out, "output", "o", "", "file to write; standard output by default")
	s.addOptions(c)
	s.addLabels(c)
	return c
}

// write writes a table, and a summary to standard error. It removes an incomplete file after an error.
func (s *settings) write(cmd *cobra.Command, extractor string, l *labels, fill func(*table) error) error {
	var to io.Writer = cmd.OutOrStdout()
	if s.out != "" {
		f, err := os.Create(s.out)
		if err != nil {
			return err
		}
		defer f.Close()
		to = f
	}
	t := newTable(to, classifier.Features[extractor], l, s.options.Window)
	if err := cmp.Or(fill(t), t.end()); err != nil {
		if s.out != "" {
			_ = os.Remove(s.out)
		}
		return err
	}
	all := 0
	for _, n := range t.rows {
		all += n
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d windows", all)
	for _, class := range slices.Sorted(maps.Keys(t.rows)) {
		if l.known() {
			fmt.Fprintf(cmd.ErrOrStderr(), ", %s %d", class, t.rows[class])
		}
	}
	fmt.Fprintln(cmd.ErrOrStderr())
	return nil
}

func replayCommand() *cobra.Command {
	var s settings
	var file string
	c := &cobra.Command{
		Use:   "replay CAPTURE --model FILE",
		Short: "Show the decisions of a model on a capture",
		Long: "Extracts the windows of a capture, evaluates the model on each with the data plane's arithmetic, and prints " +
			"its decisions.\nWith labels, a confusion matrix follows. A module's hysteresis and actions are not applied.",
		Example: "  kerb model replay net.pcap --model own.json --labels net.labels",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			d, err := model.Parse(text)
			if err != nil {
				return fmt.Errorf("model %s: %w", file, err)
			}
			if err := s.useWindow(cmd, d); err != nil {
				return err
			}
			if !cmd.Flags().Changed("normal") {
				s.normal = d.Classes[0]
			}
			l, err := s.prepare(d.Extractor)
			if err != nil {
				return err
			}
			return s.replay(cmd.OutOrStdout(), d, l, args[0])
		},
	}
	c.Flags().StringVar(&file, "model", "", "file with the model document")
	_ = c.MarkFlagRequired("model")
	s.addOptions(c)
	s.addLabels(c)
	return c
}

// useWindow sets the length of windows to that of the model, unless a flag sets it.
func (s *settings) useWindow(cmd *cobra.Command, d *model.Document) (err error) {
	if d.Window == "" || cmd.Flags().Changed("window") {
		return nil
	}
	if s.options.Window, err = time.ParseDuration(d.Window); err != nil {
		return fmt.Errorf("window of model %s: %w", d.Name, err)
	}
	return nil
}

func (s *settings) replay(to io.Writer, d *model.Document, l *labels, capture string) error {
	p, err := d.Pack(classifier.Features[d.Extractor])
	if err != nil {
		return fmt.Errorf("model %s: %w", d.Name, err)
	}
	out := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	defer out.Flush()
	found := map[[2]string]int{}
	heading := "TIME\tSOURCE\tCLASS\tSCORE"
	if l.known() {
		heading += "\tLABEL"
	}
	fmt.Fprintln(out, heading)
	err = s.options.Windows(capture, func(w Window) error {
		decision := p.Infer(w.Values)
		class, label := d.Classes[decision.Class], l.of(w, s.options.Window)
		found[[2]string{label, class}]++
		fmt.Fprintf(out, "%s\t%s\t%s\t%.4f", seconds(w.Time), w.Source, class, float64(decision.Score)/model.ScoreOne)
		if l.known() {
			fmt.Fprintf(out, "\t%s", label)
		}
		_, err := fmt.Fprintln(out)
		return err
	})
	if err == nil && l.known() {
		confusion(out, d.Classes, found)
	}
	return err
}

// confusion prints the number of windows by label and class, and how many are equal. A label that is no class of the
// model, such as attack, means all classes but the first.
func confusion(to io.Writer, classes []string, found map[[2]string]int) {
	rows, all, equal := map[string]bool{}, 0, 0
	for pair, n := range found {
		rows[pair[0]] = true
		all += n
		if pair[0] == pair[1] || !slices.Contains(classes, pair[0]) && pair[1] != classes[0] {
			equal += n
		}
	}
	fmt.Fprint(to, "\nLABEL")
	for _, class := range classes {
		fmt.Fprintf(to, "\tas %s", class)
	}
	fmt.Fprintln(to)
	for _, label := range slices.Sorted(maps.Keys(rows)) {
		fmt.Fprint(to, label)
		for _, class := range classes {
			fmt.Fprintf(to, "\t%d", found[[2]string{label, class}])
		}
		fmt.Fprintln(to)
	}
	fmt.Fprintf(to, "\n%d of %d windows are classified as labelled\n", equal, all)
}
