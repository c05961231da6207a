// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/http"

	"github.com/kerb-edge/kerb/sdk"
)

// mostExamined is how many programs are examined for one question; a control plane that wants more asks again.
const mostExamined = 256

// examineAll tells a run what programs processes run, each as soon as it is known: some take long. What it cannot take is lost: it asks
// again when it needs it.
func (p *Plane) examineAll(ctx context.Context, r *run, wanted []sdk.Process) {
	if p.examine == nil {
		return
	}
	for _, process := range wanted[:min(len(wanted), mostExamined)] {
		if ctx.Err() != nil {
			return
		}
		found := p.examine(process)
		generation, _ := p.startedOn()
		update := sdk.ExecutablesUpdate{Generation: generation, Executables: []sdk.Executable{found}}
		err := p.call(ctx, r, updateTime, "executables", update, nil)
		if err != nil && ctx.Err() == nil && !answered(err, http.StatusNotFound) && !answered(err, http.StatusConflict) {
			p.log.Warn("control plane rejects the examination result of a program", "program", found.Path, "error", err)
		}
	}
}
