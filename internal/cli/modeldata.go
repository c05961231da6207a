// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/sdk/model"
)

// publishedColumns maps features to their names in the tables of the published study.
var publishedColumns = map[string]string{"dis": "DisCount", "dio": "DioCount", "dao": "DaoCount", "other": "OtherMsg"}

// samples has rows of a table in the order of a model's features, with the correct classes.
type samples struct {
	rows    [][]float64
	classes []int
}

// readModel reads a document, and a table of samples.
func readModel(file, table, label string, stdin io.Reader) (*model.Document, *samples, error) {
	text, err := readFile(file, stdin)
	if err != nil {
		return nil, nil, err
	}
	d, err := model.Parse(text)
	if err != nil {
		return nil, nil, &apierrors.Invalid{Resource: file, Reason: err.Error()}
	}
	s, err := readSamples(table, label, d)
	return d, s, err
}

// readSamples reads a CSV file with a header: a column for each feature, and one with the class, by name or number.
// Without the latter, classes is empty.
func readSamples(file, label string, d *model.Document) (*samples, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(bufio.NewReader(bytes.NewReader(data)))
	if first, _, _ := bytes.Cut(data, []byte("\n")); bytes.ContainsRune(first, ';') {
		r.Comma = ';'
	}
	header, err := r.Read()
	if err != nil {
		return nil, &apierrors.Invalid{Resource: file, Reason: "no heading: " + err.Error()}
	}
	columns, err := featureColumns(header, d.Features)
	if err != nil {
		return nil, &apierrors.Invalid{Resource: file, Reason: err.Error()}
	}
	class := slices.Index(header, label)
	out := &samples{}
	for n := 2; ; n++ {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = out.add(record, columns, class, d.Classes)
		}
		if err != nil {
			return nil, &apierrors.Invalid{Resource: file, Reason: fmt.Sprintf("line %d: %v", n, err)}
		}
	}
	if len(out.rows) == 0 {
		return nil, &apierrors.Invalid{Resource: file, Reason: "no rows"}
	}
	return out, nil
}

// featureColumns returns the column of each feature, by its name or its name in published data sets.
func featureColumns(header, features []string) ([]int, error) {
	var columns []int
	for _, f := range features {
		i := slices.Index(header, f)
		if i < 0 {
			i = slices.Index(header, publishedColumns[f])
		}
		if i < 0 {
			return nil, fmt.Errorf("no column %s; it has %s", f, strings.Join(header, ", "))
		}
		columns = append(columns, i)
	}
	return columns, nil
}

// add appends a row. Fractions are errors and not rounded, since the data plane has only integers. The class is one of
// the model's names or its index.
func (s *samples) add(record []string, columns []int, class int, classes []string) error {
	row := make([]float64, len(columns))
	for i, c := range columns {
		v, err := strconv.ParseFloat(record[c], 64)
		if err != nil || math.Abs(v) > math.MaxInt32 || v != math.Trunc(v) {
			return fmt.Errorf("%q is no whole number within +-2^31", record[c])
		}
		row[i] = v
	}
	s.rows = append(s.rows, row)
	if class < 0 {
		return nil
	}
	i := slices.Index(classes, record[class])
	if n, err := strconv.Atoi(record[class]); i < 0 && err == nil && n >= 0 && n < len(classes) {
		i = n
	}
	if i < 0 {
		return fmt.Errorf("class %q is not one of the model's: %s", record[class], strings.Join(classes, ", "))
	}
	s.classes = append(s.classes, i)
	return nil
}

func integers(row []float64) []int64 {
	out := make([]int64, len(row))
	for i, v := range row {
		out[i] = int64(v)
	}
	return out
}
