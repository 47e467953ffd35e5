// Package task defines the steps of an installation, Task and Phase, and their two inputs: Site, the knowledge of a
// step about the cluster and the run, and Host, its toolbox for one machine. The packages beside it implement the
// steps.
//
// A Site does not change while steps run. A test of a step needs only a literal Site with the fields that the step
// reads, and a Host with a connection; see TestStep in package machine.
package task
