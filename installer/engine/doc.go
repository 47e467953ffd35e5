// Package engine runs tasks on hosts: it connects, locks hosts and the work directory, finds the control plane that
// speaks for the cluster, runs phases host by host, watches commands that hang, records what happened, and lets go of
// everything. It knows no task: package installer gives it the plan.
package engine
