// Package s3 puts files into a bucket of an object storage with the S3 API, lists them and reads them. The helper on
// hosts has it, so it is the standard library and package web only.
package s3
