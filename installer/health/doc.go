// Package health inspects a cluster and judges its state: the survey of hosts and API server, and the proofs of the
// phase verify.
package health
