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
func (s *Site) AddFindings(list ...report.Finding) {
	s.Verified.Mu.Lock()
	for i := range list {
		list[i].Found = s.Mask.Mask(list[i].Found)
	}
	s.Verified.findings = append(s.Verified.findings, list...)
	s.Verified.Mu.Unlock()
	for _, f := range list {
		state := Warned
		switch f.State {
		case report.OK:
			continue
		case report.Failed:
			state = Failed
		}
		s.Tell(Event{Phase: VerifyPhase, Task: f.ID, Host: f.Host, State: state, Message: f.Found})
	}
}

func (s *Site) Findings() report.Findings {
	s.Verified.Mu.Lock()
	defer s.Verified.Mu.Unlock()
	return slices.Clone(s.Verified.findings)
}
