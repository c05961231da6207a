// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/http"

	"github.com/kerb-edge/kerb/internal/executable"
	"github.com/kerb-edge/kerb/sdk"
)

// grantExecutables examines for a control plane the programs of the processes that it names.
func grantExecutables(o *Options, _ string) any {
	return examineGrant(o.Examine)
}

type examineGrant func(sdk.Process) sdk.Executable

// maxExamined is how many programs are examined for one request; a control plane that needs more asks again.
const maxExamined = 256

// serve reports each program as soon as it is examined, since some take long. A report that the control plane does
// not take is lost: it asks again when it needs it.
func (g examineGrant) serve(ctx context.Context, p *Plane, r *run, requests *sdk.Requests) {
	for _, process := range requests.Examine[:min(len(requests.Examine), maxExamined)] {
		if ctx.Err() != nil {
			return
		}
		found := g(process)
		generation, _ := p.startedOn()
		update := sdk.ExecutablesUpdate{Generation: generation, Executables: []sdk.Executable{found}}
		err := p.call(ctx, r, updateTime, "executables", update, nil)
		if err != nil && ctx.Err() == nil && !answered(err, http.StatusNotFound) && !answered(err, http.StatusConflict) {
			p.log.Warn("control plane rejects the examination result of a program", "program", found.Path, "error", err)
		}
	}
}

// Examine returns a function that examines the program of a process.
func Examine() func(sdk.Process) sdk.Executable {
	var examiner executable.Examiner
	return func(p sdk.Process) sdk.Executable {
		out := sdk.Executable{Process: p}
		facts, err := examiner.Examine(p.PID, p.Start)
		if err != nil {
			out.Problem = err.Error()
			return out
		}
		out.Path, out.Device, out.Inode, out.Modified, out.Size = facts.Path, facts.Device, facts.Inode, facts.Modified,
			facts.Size
		out.Uses, out.Configured, out.Go = facts.Uses, facts.Configured, facts.Go
		return out
	}
}
