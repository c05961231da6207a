// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"encoding/binary"
	"math"
	"slices"
)

// protobufType is the media type of a Set with Protobuf: messages io.prometheus.client.MetricFamily, each behind its
// length. Prometheus reads native histograms in no other format.
const protobufType = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"

// message is a protobuf message that is being written, field by field.
type message []byte

// Wire types of protobuf.
const (
	wireVarint = 0
	wireDouble = 1
	wireBytes  = 2
)

func (m *message) varint(field int, v uint64) {
	*m = binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field<<3|wireVarint)), v)
}

// zigzag writes a sint32 or sint64.
func (m *message) zigzag(field int, v int64) { m.varint(field, uint64(v<<1^v>>63)) }

func (m *message) double(field int, v float64) {
	*m = binary.LittleEndian.AppendUint64(binary.AppendUvarint(*m, uint64(field<<3|wireDouble)), math.Float64bits(v))
}

func (m *message) bytes(field int, data string) {
	*m = binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field<<3|wireBytes)), uint64(len(data)))
	*m = append(*m, data...)
}

// Types of metrics, and the fields of Metric with their values.
var protobufTypes = map[string]struct {
	kind  uint64
	field int
}{"counter": {0, 3}, "gauge": {1, 2}, "histogram": {4, 7}}

// writeMetric adds a series to a family: the field metric.
func (f *family) writeMetric(labels []string, value message) {
	var metric, list message
	for pair := range slices.Chunk(labels, 2) {
		var label message
		label.bytes(1, pair[0])
		label.bytes(2, pair[1])
		metric.bytes(1, string(label))
	}
	metric.bytes(protobufTypes[f.kind].field, string(value))
	list.bytes(4, string(metric))
	f.lines.Write(list)
}

// protobuf is the family as a message.
func (f *family) protobuf(name string) []byte {
	var m message
	m.bytes(1, name)
	m.bytes(2, f.help)
	m.varint(3, protobufTypes[f.kind].kind)
	m = append(m, f.lines.Bytes()...)
	return append(binary.AppendUvarint(nil, uint64(len(m))), m...)
}

// histogram is a message Histogram.
func histogram(bounds []float64, counts []uint64, sum float64, native *Native) (m message) {
	n := uint64(0)
	for i, count := range counts {
		n += count
		var bucket message
		bucket.varint(1, n)
		bucket.double(2, bound(bounds, i))
		m.bytes(3, string(bucket))
	}
	m.varint(1, n)
	m.double(2, sum)
	if native != nil {
		native.write(&m)
	}
	return m
}

// nativeSchema has four buckets for each power of two.
const nativeSchema = 2

// Native is a histogram with buckets of Prometheus's schema 2: bucket i is above 2^((i-1)/4) and up to 2^(i/4).
type Native struct {
	zero   uint64
	counts map[int]uint64
}

// Add counts n times a value that is not negative.
func (h *Native) Add(value float64, n uint64) {
	if n == 0 {
		return
	}
	if value == 0 {
		h.zero += n
		return
	}
	if h.counts == nil {
		h.counts = map[int]uint64{}
	}
	h.counts[int(math.Ceil(math.Log2(value)*(1<<nativeSchema)))] += n
}

// write adds the buckets to a message Histogram: spans of neighbors, and differences between counts.
func (h *Native) write(m *message) {
	m.zigzag(5, nativeSchema)
	m.varint(7, h.zero)
	next, before := 0, int64(0)
	var spans, deltas message
	indices := make([]int, 0, len(h.counts))
	for i := range h.counts {
		indices = append(indices, i)
	}
	slices.Sort(indices)
	for len(indices) > 0 {
		first, n := indices[0], 0
		for n < len(indices) && indices[n] == first+n {
			count := int64(h.counts[first+n])
			deltas.zigzag(13, count-before)
			before = count
			n++
		}
		var span message
		span.zigzag(1, int64(first-next))
		span.varint(2, uint64(n))
		spans.bytes(12, string(span))
		next, indices = first+n, indices[n:]
	}
	*m = append(append(*m, spans...), deltas...)
}
