// Package plan lists what an installation of a cluster does: the phases of tasks, in order, and what follows from
// them without a host: the items and packages that a bundle needs, the uses of its charts, the images that programs
// pull. The tasks are of the step packages; here are those that need several of them.
package plan
