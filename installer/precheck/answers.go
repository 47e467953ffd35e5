package precheck

import (
	"slices"
	"strings"
)

// ProgramAnswers are answers of the bundle's programs of Kubernetes, run on this machine, about settings of the
// cluster file.
type ProgramAnswers struct {
	// Refused has a sentence for each refused setting, Unasked one for each question without an answer.
	Refused, Unasked []string
}

// answersID is the check that needs ProgramAnswers.
const answersID = "program-settings"

// answerChecks check what Kubernetes' programs say of the cluster file.
func answerChecks() []Check {
	return []Check{{
		ID: answersID, Groups: []string{GroupKubernetes}, Level: Block,
		Title: "Kubernetes' programs take the cluster file's arguments, feature gates and kubelet configuration",
		Rule:  takeSettings, OfCluster: true,
		Why:    "a program that refuses a setting does not start, which ends the installation or the upgrade halfway",
		Fix:    "correct or remove the listed settings, in the cluster file or in --set",
		Source: "the bundle's kube-apiserver, kube-controller-manager, kube-scheduler and kubelet, run on the deploy machine",
	}}
}

// AsksPrograms reports whether the check of the programs' answers is selected.
func (s Selection) AsksPrograms() bool { return s.chooses(answersID) }

func takeSettings(s *Subject) Finding {
	a := s.Input.Answers
	switch {
	case a == nil:
		return skip()
	case len(a.Refused) > 0:
		return fail(strings.Join(slices.Concat(a.Refused, a.Unasked), "; "))
	case len(a.Unasked) > 0:
		return unknown(strings.Join(a.Unasked, "; "))
	}
	return pass("they do")
}
