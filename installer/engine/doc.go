// Package engine runs tasks on hosts. It connects to hosts, locks them and the work directory, finds the control
// plane that speaks for the cluster, runs phases host by host, ends commands that hang, writes the log and the
// report, and disconnects. It knows no task: package installer supplies the plan.
package engine
