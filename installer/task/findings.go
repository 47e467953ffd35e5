package task

import (
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/installer/report"
)

// VerifyPhase is the phase that proves that the cluster works. Its tasks gather what they find; the last of them judges.
const VerifyPhase = "verify"

// A Verification is what the phase has found so far.
type Verification struct {
	Mu       sync.Mutex
	findings report.Findings
	Waits    map[string]error // what did not come about in the time that it was given
}

// add records findings and tells those that are not as they should be.
func (r *Site) Found(list ...report.Finding) {
	r.Verified.Mu.Lock()
	for i := range list {
		list[i].Found = r.Mask.Mask(list[i].Found)
	}
	r.Verified.findings = append(r.Verified.findings, list...)
	r.Verified.Mu.Unlock()
	for _, f := range list {
		state := Warned
		switch f.State {
		case report.OK:
			continue
		case report.Failed:
			state = Failed
		}
		r.Tell(Event{Phase: VerifyPhase, Task: f.ID, Host: f.Host, State: state, Message: f.Found})
	}
}

func (r *Site) Findings() report.Findings {
	r.Verified.Mu.Lock()
	defer r.Verified.Mu.Unlock()
	return slices.Clone(r.Verified.findings)
}
