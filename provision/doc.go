// Package provision reads what a host is to be made of from the formats that Cluster API's bootstrap providers write: the
// #cloud-config documents of cloud-init, and Ignition (spec 3). Both become the same steps, in the order in which the
// format's own program would take them. Nothing here touches a host.
//
// What is not understood is a problem with its line, never passed over: a host that silently lacks a mount or a user is
// found out when it is too late.
//
// https://docs.cloud-init.io/en/latest/reference/modules.html
// https://coreos.github.io/ignition/configuration-v3_5/
package provision
