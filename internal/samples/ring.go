// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// ring is a file of records, of which a new one overwrites the oldest. A record is a head and the values of the slots,
// which have checksums of their own: a write that was cut short costs its record and no other.
type ring struct {
	f            *os.File
	every, slots int64
	width        int // values of a slot

	numbers, times []int64 // of the records: the last sample in each, or -1, and its time
	buffer         []byte

	// of the next record, by slot
	sum [MaxSeries]float64
	max [MaxSeries]float32
	n   [MaxSeries]uint8
}

// head is the beginning of a record.
type head struct {
	Format      uint32
	Slots       uint32 // that have values
	Number      int64  // of the last sample in it
	Time        int64  // of that, Unix, in milliseconds
	ValuesCheck uint32
	Check       uint32 // of all before
}

const (
	format   = 0x3153424b // KBS1
	headSize = 32
)

var errNoRecord = errors.New("there is no such record")

// openRing opens a file and reads which records it has.
func openRing(path string, every, slots int64, width int) (*ring, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &ring{f: f, every: every, slots: slots, width: width}
	r.buffer = make([]byte, r.size())
	if err := r.reserve(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%d MiB for %s: %w", r.size()*slots>>20, path, err)
	}
	for i := range slots {
		r.numbers, r.times = append(r.numbers, -1), append(r.times, 0)
		if h, err := r.head(i); err == nil && r.slot(h.Number) == i && (h.Number+1)%every == 0 {
			r.numbers[i], r.times[i] = h.Number, h.Time
		}
	}
	return r, nil
}

// size is that of a record.
func (r *ring) size() int64 { return headSize + int64(4*MaxSeries*r.width) }

// reserve gives the file its size on disk, if the file system can: writes then need no room.
func (r *ring) reserve() error {
	info, err := r.f.Stat()
	if err != nil {
		return err
	}
	size := r.size() * r.slots
	err = unix.Fallocate(int(r.f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil {
		return r.f.Truncate(size)
	}
	return errors.Join(err, r.f.Truncate(min(info.Size(), size))) // what was allocated until then
}

func (r *ring) slot(number int64) int64 { return number / r.every % r.slots }

// head reads that of a record.
func (r *ring) head(slot int64) (h head, err error) {
	b := r.buffer[:headSize]
	if _, err = r.f.ReadAt(b, slot*r.size()); err != nil {
		return h, err
	}
	if _, err = binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return h, err
	}
	if h.Format != format || h.Slots > MaxSeries || h.Number < 0 || h.Check != crc32.ChecksumIEEE(b[:headSize-4]) {
		return h, errNoRecord
	}
	return h, nil
}

// newest is the number of the last sample that is in a record, or -1.
func (r *ring) newest() int64 { return slices.Max(r.numbers) }

// add adds a sample to the next record.
func (r *ring) add(values []float32) {
	for i, v := range values {
		if math.IsNaN(float64(v)) {
			continue
		}
		if r.n[i] == 0 || v > r.max[i] {
			r.max[i] = v
		}
		r.sum[i] += float64(v)
		r.n[i]++
	}
}

// forget takes the values of a slot out of the next record.
func (r *ring) forget(slot int) { r.sum[slot], r.n[slot] = 0, 0 }

// write writes the record that ends with a sample, and begins the next one.
func (r *ring) write(number, at int64, used int) error {
	values := r.buffer[headSize:headSize]
	for i := range used {
		values = binary.LittleEndian.AppendUint32(values, math.Float32bits(r.mean(i)))
	}
	if r.width > 1 {
		for i := range used {
			v := nan
			if r.n[i] > 0 {
				v = r.max[i]
			}
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v))
		}
	}
	clear(r.sum[:])
	clear(r.n[:])
	h := head{format, uint32(used), number, at, crc32.ChecksumIEEE(values), 0}
	if _, err := binary.Encode(r.buffer, binary.LittleEndian, h); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(r.buffer[headSize-4:], crc32.ChecksumIEEE(r.buffer[:headSize-4]))
	slot := r.slot(number)
	r.numbers[slot] = -1
	if _, err := r.f.WriteAt(r.buffer[:headSize+len(values)], slot*r.size()); err != nil {
		return err
	}
	r.numbers[slot], r.times[slot] = number, at
	return nil
}

func (r *ring) mean(slot int) float32 {
	if r.n[slot] == 0 {
		return nan
	}
	return float32(r.sum[slot] / float64(r.n[slot]))
}

// read returns the values and the time of the record that ends with a sample.
func (r *ring) read(number int64) (values []float32, at int64, err error) {
	slot := r.slot(number)
	h, err := r.head(slot)
	if err != nil || h.Number != number {
		return nil, 0, errNoRecord
	}
	b := r.buffer[:4*int(h.Slots)*r.width]
	if _, err = r.f.ReadAt(b, slot*r.size()+headSize); err != nil {
		return nil, 0, err
	}
	if crc32.ChecksumIEEE(b) != h.ValuesCheck {
		return nil, 0, errNoRecord
	}
	values = make([]float32, int(h.Slots)*r.width)
	_, err = binary.Decode(b, binary.LittleEndian, values)
	return values, h.Time, err
}

// since returns the numbers of the records not older than a time, oldest first.
func (r *ring) since(from, next int64) (numbers []int64) {
	before := int64(math.MaxInt64)
	for i := range r.slots {
		n := next - next%r.every - 1 - i*r.every
		if n < 0 {
			break
		}
		if slot := r.slot(n); r.numbers[slot] == n && r.times[slot] < before && r.times[slot] >= from {
			numbers, before = append(numbers, n), r.times[slot]
		}
	}
	slices.Reverse(numbers)
	return numbers
}
