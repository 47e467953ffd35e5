// Package health inspects a cluster and judges it: the survey of hosts and API server, and the proofs of phase verify.
package health
