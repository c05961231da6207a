// SPDX-License-Identifier: Apache-2.0

package classifier

import "fmt"

// NoteName implements sdk.NoteNamer: the class and the score of a packet's source, as cls_note_evaluation has them.
func (w *running) NoteName(_ string, value uint64) string {
	version, class, score := uint32(value>>24), uint32(value>>16&0xff), int32(value&0xffff)
	return fmt.Sprintf("%s:%.3f", w.words.class(version, class), share(score))
}
