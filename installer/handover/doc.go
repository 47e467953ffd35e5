// Package handover hands a running cluster over to Cluster API: it writes the objects by which the management cluster
// knows the cluster as it is, so that nothing is replaced, and marks each host with its machine. What is pure, Objects,
// says what the objects are; the provider's tests ask Cluster API's own code whether it would replace a machine.
package handover
