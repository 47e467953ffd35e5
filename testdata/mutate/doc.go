// Package mutate has tests of hostile input: mutated bundles, registry answers, charts and host answers must not
// cause a panic, nor take more memory or time than docs/reference/reliability.md promises.
package mutate
