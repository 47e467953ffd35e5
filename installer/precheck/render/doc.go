// Package render writes reports of prechecks, and the list of checks, for people and programs: as tables, JSON, JUnit's
// XML, Markdown and a page of HTML. What hosts said is text in each of them.
package render
