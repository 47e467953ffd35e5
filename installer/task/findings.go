package task

import (
	"slices"
	"sync"

	"github.com/kkbundle/kkbundle/installer/report"
)

// VerifyPhase is the phase that verifies the cluster. Its tasks collect findings; the last one judges them.
const VerifyPhase = "verify"

// A Verification holds the findings of the phase so far.
type Verification struct {
	Mu       sync.Mutex
	findings report.Findings
	Waits    map[string]error // waits that timed out
}

// AddFindings records findings and reports those that are not OK as events.
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

// Findings returns the findings so far.
func (s *Site) Findings() report.Findings {
	s.Verified.Mu.Lock()
	defer s.Verified.Mu.Unlock()
	return slices.Clone(s.Verified.findings)
}
