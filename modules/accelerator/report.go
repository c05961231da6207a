// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/kerb-edge/kerb/sdk"
)

var (
	_ sdk.Handler     = (*accelerator)(nil)
	_ sdk.Collector   = (*accelerator)(nil)
	_ sdk.Conditioner = (*accelerator)(nil)
)

// Handler serves:
//
//	GET pairs		results of connections, by pair of services
//	GET refused		which stayed with TCP, and why
//	GET executables		the programs, and whether they may take part
//	GET destinations	where new connections are not tried for now
//	GET kernel		what redirected sockets do otherwise on this kernel, what they save, and whether it has a guard
func (a *accelerator) Handler() http.Handler {
	mux := http.NewServeMux()
	serve := func(path string, what func() (any, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { sdk.Answer(w)(what()) })
	}
	serve("/pairs", func() (any, error) { return a.pairs() })
	serve("/refused", func() (any, error) { return a.refused() })
	serve("/executables", func() (any, error) { return a.executables() })
	serve("/destinations", func() (any, error) { return a.destinations() })
	serve("/kernel", func() (any, error) { return KernelReport{a.live.Kernel, a.guarded()}, nil })
	return mux
}

// Places of reasons. What is closed was not refused.
var (
	reasonFull   = slices.Index(reasons[:], "full")
	reasonClosed = slices.Index(reasons[:], "closed")
)

// explanations of reasons.
var explanations = map[string]string{
	"port":       "the config leaves the server's port out",
	"visible":    "config.visible lists it",
	"policy":     "another module on one of the services must see traffic between network namespaces",
	"unexamined": "the client's program had not been checked yet; connections opened a moment later may be redirected",
	"executable": "the program is not known to be safe, or denied; the query executables shows why, and how to allow it",
	"short": "connections to this destination close before redirection pays off; a sample is retried " +
		"(thresholds.retry)",
	"remote":     "no local server at this destination; a sample is retried (thresholds.retry)",
	"full":       "a table is full",
	"ambiguous":  "another connection with the same sequence numbers exists",
	"option":     "a socket option that redirected sockets do not honour",
	"waitall":    "the receiver waits by MSG_WAITALL",
	"blocking":   "it blocks in recv, where a signal would cause EAGAIN; add it to programs.allow to accept that",
	"urgent":     "urgent data",
	"threads":    "one thread receives while another sends",
	"stream":     "one side streams without waiting for replies, which is faster over plain TCP",
	"foreignMap": "another BPF program holds the socket in its own map",
	"quota":      "the client's service has reached its quota of connections",
	"modeOff":    "the mode is off",
	"idle":       "no message for longer than thresholds.idle",
	"uring":      "the program uses io_uring, which does not receive redirected data",
	"serverUnexamined": "the server's program had not been checked yet; it is when its service is attached, when it " +
		"listens, and when one of its connections closes",
}

// PairReport is about the connections from one service to another.
type PairReport struct {
	Client      string            `json:"client"`
	Server      string            `json:"server"`
	Offered     uint64            `json:"offered"`     // connections whose client could take part
	Paired      uint64            `json:"paired"`      // whose server could as well
	Accelerated uint64            `json:"accelerated"` // that redirected anything
	Left        uint64            `json:"left"`        // that went back to TCP for good before they ended
	Messages    uint64            `json:"messages"`    // redirected
	Bytes       uint64            `json:"bytes"`
	Refused     map[string]uint64 `json:"refused,omitempty"` // by reason
}

func readCounts(m sdk.Maps) (map[routeKey]countsEntry, error) {
	return tableOf[routeKey, countsEntry](m, mapCounts)
}

// total of a reason.
func total(counts map[routeKey]countsEntry, reason int) (n uint64) {
	for _, c := range counts {
		n += c.Refused[reason]
	}
	return n
}

func (a *accelerator) pairs() ([]PairReport, error) {
	counts, err := readCounts(a.live.Maps)
	if err != nil {
		return nil, err
	}
	services := a.memory
	sums := map[[2]string]*PairReport{} // several may have gone
	for route, c := range counts {
		key := [2]string{services.name(route.Client), services.name(route.Server)}
		if sums[key] == nil {
			sums[key] = &PairReport{Client: key[0], Server: key[1], Refused: map[string]uint64{}}
		}
		sums[key].add(&c)
	}
	out := []PairReport{}
	for _, sum := range sums {
		out = append(out, *sum)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Server, b.Server)) < 0
	})
	return out, nil
}

// add adds the counters of one map entry. Connections that merely closed are not reported as refused.
func (r *PairReport) add(c *countsEntry) {
	r.Offered += c.Offered
	r.Paired += c.Paired
	r.Accelerated += c.Accelerated
	r.Left += c.Left
	r.Messages += c.Messages
	r.Bytes += c.Bytes
	for i, n := range c.Refused {
		if n > 0 && i != reasonClosed {
			r.Refused[reasons[i]] += n
		}
	}
}

// RefusedReport says why connections stayed with TCP, or went back to it.
type RefusedReport struct {
	Client      string `json:"client"`
	Server      string `json:"server"`
	Reason      string `json:"reason"`
	Connections uint64 `json:"connections"`
	Meaning     string `json:"meaning"`
}

// refused returns one row per pair of services and reason, with the explanation of the reason, sorted by reason within
// a pair.
func (a *accelerator) refused() ([]RefusedReport, error) {
	pairs, err := a.pairs()
	if err != nil {
		return nil, err
	}
	out := []RefusedReport{}
	for _, p := range pairs {
		for _, reason := range slices.Sorted(maps.Keys(p.Refused)) {
			out = append(out, RefusedReport{p.Client, p.Server, reason, p.Refused[reason], explanations[reason]})
		}
	}
	return out, nil
}

// ExecutableReport is what is thought of a program.
type ExecutableReport struct {
	Path    string `json:"path"`    // below the root directory of its process
	Command string `json:"command"` // name of that process
	PID     int    `json:"pid"`
	Verdict string `json:"verdict"` // safe, kept out
	Why     string `json:"why,omitempty"`
}

// executables returns the programs seen so far with their verdicts. What the kernel part caught a program doing
// overrides the control plane's own judgement.
func (a *accelerator) executables() ([]ExecutableReport, error) {
	inMap, err := readVerdicts(a.live.Maps)
	if err != nil {
		return nil, err
	}
	out := []ExecutableReport{}
	for _, p := range a.memory.all() {
		verdict, why := a.judge(&p)
		if entry := inMap[p.File]; entry.Verdict == caught {
			verdict, why = caught, "it was seen: "+explanations[reasonOf(entry.Reason)]
		}
		out = append(out, ExecutableReport{p.Path, p.Comm, p.PID, verdicts[verdict], why})
	}
	return out, nil
}

func reasonOf(n uint32) string {
	if int(n) < len(reasons) {
		return reasons[n]
	}
	return ""
}

// KernelReport is how redirected sockets behave on this kernel.
type KernelReport struct {
	sdk.Kernel
	Guard bool `json:"guard"` // splice(2) on them fails with EINVAL, instead of finding nothing
}

// DestinationReport is a destination of which the data plane has learned something.
type DestinationReport struct {
	Client     string  `json:"client"`
	Address    string  `json:"address"`
	Turns      float64 `json:"turns"`      // average of its connections
	Unanswered uint32  `json:"unanswered"` // unanswered offers in a row
	Skipped    uint32  `json:"skipped"`    // connections since the last that was tried
}

// destinations returns measured round trips per client and destination. The kernel part stores turns in sixteenths; a
// network namespace without a service is the node itself.
func (a *accelerator) destinations() ([]DestinationReport, error) {
	all, err := tableOf[addressKey, destinationEntry](a.live.Maps, mapDestinations)
	if err != nil {
		return nil, err
	}
	services := map[uint64]string{}
	for _, i := range a.live.Attachments() {
		services[i.NetnsCookie] = i.Service
	}
	out := []DestinationReport{}
	for key, d := range all {
		at := netip.AddrPortFrom(netip.AddrFrom16(key.Address).Unmap(), uint16(key.Port))
		client := cmp.Or(services[key.Netns], "(node)")
		out = append(out, DestinationReport{client, at.String(), float64(d.Turns) / 16, d.Offers, d.Passed})
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(a.Client, b.Client), cmp.Compare(a.Address, b.Address)) < 0
	})
	return out, nil
}

// Conditions implements sdk.Conditioner.
func (a *accelerator) Conditions() ([]sdk.Condition, error) {
	all, err := a.executables()
	if err != nil {
		return nil, err
	}
	counts, err := readCounts(a.live.Maps)
	if err != nil {
		return nil, err
	}
	return slices.Concat([]sdk.Condition{a.accelerates(), a.room(counts)}, excluded(all), a.visibility()), nil
}

// accelerates returns the condition Accelerating. It is False if the mode is off, or if socket redirection was not
// tested on this kernel, or failed the test.
func (a *accelerator) accelerates() sdk.Condition {
	out := sdk.Condition{Type: "Accelerating", Status: "True", Reason: "Adaptive"}
	if turns := a.live.Kernel.RoundTrips; len(turns) > 0 {
		out.Message = fmt.Sprintf("a turn of %d bytes over loopback takes %v instead of %v", turns[0].Bytes,
			turns[0].Redirected, turns[0].Plain)
	}
	if a.guarded() {
		out.Message = strings.TrimPrefix(out.Message+"; splice(2) is guarded", "; ")
	}
	switch {
	case a.Mode == "off":
		out.Status, out.Reason, out.Message = "False", "Disabled", "mode is off: all connections use plain TCP"
	case len(a.live.Kernel.Sockets) == 0:
		out.Status, out.Reason, out.Message = "False", "KernelNotTested", "socket redirection was not tested on this "+
			"kernel: all connections use plain TCP; see kerb doctor"
	case !a.trusts(a.live.Kernel):
		out.Status, out.Reason, out.Message = "False", "KernelUnsupported", "this kernel does not deliver redirected data "+
			"reliably: all connections use plain TCP; see kerb doctor"
	case a.Mode == "redirect-all":
		out.Reason, out.Message = "RedirectAll", "streams are slower than with plain TCP: this mode is for comparisons only"
	}
	return out
}

// mostNamed is how many programs or services a message names.
const mostNamed = 5

// excluded returns the condition ProgramsExcluded, whose message names programs that the module does not know to be
// safe. Without such programs there is no condition: one that is False would be a problem of the node.
func excluded(all []ExecutableReport) []sdk.Condition {
	var out []string
	for _, x := range all {
		if x.Verdict == verdicts[unsafe] {
			out = append(out, x.Path+" ("+x.Why+")")
		}
	}
	if len(out) == 0 {
		return nil
	}
	return []sdk.Condition{{Type: "ProgramsExcluded", Status: "True", Reason: "NotKnownToBeSafe",
		Message: "connections of these programs use plain TCP: " + first(out) + "; programs.allow includes others"}}
}

func first(list []string) string {
	if more := len(list) - mostNamed; more > 0 {
		return strings.Join(list[:mostNamed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(list, ", ")
}

// visibility returns the condition VisibilityRequired: the services whose connections stay with TCP because another
// module on their path must see the packets. Without such services there is none.
func (a *accelerator) visibility() []sdk.Condition {
	var out []string
	for _, i := range a.live.Attachments() {
		if see := a.visibleTo(i); len(see) > 0 && i.Service != "" {
			out = append(out, i.Service+" ("+strings.Join(see, ", ")+")")
		}
	}
	if len(out) == 0 {
		return nil
	}
	return []sdk.Condition{{Type: "VisibilityRequired", Status: "True", Reason: "OtherModules",
		Message: "connections of these services to and from other network namespaces use plain TCP, because other modules " +
			"must see them: " + first(out) + "; list packages in past that need not see them"}}
}

func (a *accelerator) room(counts map[routeKey]countsEntry) sdk.Condition {
	if n := total(counts, reasonFull) - a.full.Load(); n > 0 {
		return sdk.Condition{Type: "WithinTableLimits", Status: "False", Reason: "TableFull",
			Message: fmt.Sprintf("%d connections used plain TCP because a table was full", n)}
	}
	return sdk.Condition{Type: "WithinTableLimits", Status: "True", Reason: "BelowLimit"}
}

// Collect implements sdk.Collector.
func (a *accelerator) Collect() ([]sdk.Sample, error) {
	pairs, err := a.pairs()
	if err != nil {
		return nil, err
	}
	all, err := a.executables()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	for _, p := range pairs {
		out = append(out, p.samples()...)
	}
	by := map[string]int{verdicts[safe]: 0, verdicts[unsafe]: 0}
	for _, x := range all {
		by[x.Verdict]++
	}
	for verdict, n := range by {
		out = append(out, sdk.Sample{Name: "executables", Help: "Programs by verdict.",
			Labels: map[string]string{"verdict": verdict}, Value: float64(n)})
	}
	ends, err := a.live.Maps.Get(mapEnds)
	if err != nil {
		return nil, err
	}
	return append(out,
		sdk.Sample{Name: "sockets", Help: "Sockets in the redirection map.", Value: float64(countKeys[uint64](ends))},
		sdk.Sample{Name: "sockets_capacity", Help: "Maximum number of sockets in the redirection map.",
			Value: float64(ends.MaxEntries())}), nil
}

// samples returns the counters of a pair of services. Refusals have one series per reason that occurred.
func (r *PairReport) samples() (out []sdk.Sample) {
	add := func(name, help, label, value string, n uint64) {
		labels := map[string]string{"client": r.Client, "server": r.Server}
		if label != "" {
			labels[label] = value
		}
		out = append(out, sdk.Sample{Name: name, Help: help, Counter: true, Labels: labels, Value: float64(n)})
	}
	const connections = "Connections by how far they came: offered by the client, paired with the server, accelerated, " +
		"left before they ended."
	for stage, n := range map[string]uint64{"offered": r.Offered, "paired": r.Paired, "accelerated": r.Accelerated,
		"left": r.Left} {
		add("connections_total", connections, "stage", stage, n)
	}
	add("messages_total", "Redirected messages.", "", "", r.Messages)
	add("bytes_total", "Redirected bytes.", "", "", r.Bytes)
	for reason, n := range r.Refused {
		add("refused_total", "Connections that stayed with TCP or went back to it, by reason.", "reason", reason, n)
	}
	return out
}

// NoteName implements sdk.NoteNamer: why the connection of a message stays with TCP, as in reports.
func (*accelerator) NoteName(_ string, value uint64) string {
	if value >= uint64(len(reasons)) {
		return ""
	}
	return reasons[value]
}
