// Package provision reads the description of a host in the formats of Cluster API's bootstrap providers: the
// #cloud-config documents of cloud-init, and Ignition (spec 3). Both become the same kinds of steps, in the order of
// the format's own program. The package does not touch a host.
//
// Everything that it does not understand is a problem with its line, because a silently missing mount or user on a host
// would be noticed too late.
//
// https://docs.cloud-init.io/en/latest/reference/modules.html https://coreos.github.io/ignition/configuration-v3_5/
package provision
