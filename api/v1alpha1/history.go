// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"math"
	"strconv"
)

// Series identifies a sampled metric and its labels.
type Series struct {
	Name      string `json:"name"`
	Service   string `json:"service,omitempty"`
	Module    string `json:"module,omitempty"`
	Direction string `json:"direction,omitempty"`
	Verdict   string `json:"verdict,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// Labels returns the names and values of the labels that are not empty, ordered by name.
func (s Series) Labels() (pairs []string) {
	for _, l := range [][2]string{{"direction", s.Direction}, {"module", s.Module}, {"reason", s.Reason},
		{"service", s.Service}, {"verdict", s.Verdict}} {
		if l[1] != "" {
			pairs = append(pairs, l[0], l[1])
		}
	}
	return pairs
}

// HistoryRequest selects samples.
type HistoryRequest struct {
	Name   string `query:"name" doc:"Only series of the service or the module of this name"`
	Since  int    `query:"since" minimum:"1" maximum:"2592000" default:"3600" doc:"Samples of this many seconds until now. The step follows from it: 10 s up to 2 hours, 1 min up to 24 hours, 10 min up to 30 days"`
	Follow bool   `query:"follow" doc:"Instead: one sample a second from now on, after those of the last 5 minutes in which another client followed"`
}

// HistoryLine is one line of the answer: the series to which the values of the following lines belong, a sample, or the
// error that ends the answer.
type HistoryLine struct {
	Series  []Series `json:"series,omitempty" doc:"Series of the values, for all lines until the next one with series"`
	Step    int      `json:"step,omitempty" doc:"Seconds from one sample to the next"`
	Omitted int      `json:"omitted,omitempty" doc:"Series for which there is no room"`

	Time   float64 `json:"time,omitempty" doc:"When the sample was taken: Unix time in seconds"`
	Values Values  `json:"values,omitempty" doc:"Means over the step; null where nothing was measured"`
	Max    Values  `json:"max,omitempty" doc:"Maxima of the samples of 10 s; not there if the step is not longer"`

	Error string `json:"error,omitempty"`
}

// Values are numbers; NaN is null in JSON.
type Values []float32

// MarshalJSON implements json.Marshaler.
func (v Values) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 2+8*len(v)), '[')
	for i, n := range v {
		if i > 0 {
			out = append(out, ',')
		}
		if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
			out = append(out, "null"...)
		} else {
			out = strconv.AppendFloat(out, f, 'g', -1, 32)
		}
	}
	return append(out, ']'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Values) UnmarshalJSON(data []byte) error {
	var all []*float32
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	*v = make(Values, len(all))
	for i, n := range all {
		if (*v)[i] = float32(math.NaN()); n != nil {
			(*v)[i] = *n
		}
	}
	return nil
}
