// Package task has what a step of an installation is and may use: Task and Phase, the Site that a step works for, and
// Host, the toolbox for one machine. It decides nothing; the packages beside it are the steps.
//
// A Site does not change while steps run. A test of a step needs a literal Site with the fields that the step reads, and
// a Host with a connection to somewhere.
package task
