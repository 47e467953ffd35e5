// Package health looks at a cluster and judges it: the survey of hosts and API server, and the proofs of the phase
// verify.
package health
