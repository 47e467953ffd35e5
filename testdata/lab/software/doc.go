// Package software makes what the lab's clusters run: it compiles Kubernetes and its companions from their Go
// modules, assembles images as published ones look, packs release archives and charts, and lays all of it out as
// upstreams have it.
//
// Everything is kept in one directory by the key of what it is made from, so each thing is made once on a machine.
package software
