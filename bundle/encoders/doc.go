// Package encoders remembers which encoder made a gzip stream, by the stream's digest.
//
// To find the encoder, the whole stream is compressed again (package regzip). A Record keeps the answers in the file
// "encoders" of the cache directory, so that each stream is asked about once:
//
//	record  sum [32]byte, generation uint32, encoder [24]byte, crc uint32
//
// Numbers are little-endian. sum is the sha256 of the stream, encoder a regzip.ID filled up with zeros, and only
// zeros if no encoder makes the stream. generation is the regzip.Generation that decided. crc is the CRC-32C of the
// 60 bytes before it. Of several records with the same sum, the last one counts.
//
// Records are appended one by one, each with a single write, while the file is locked (flock). Reading takes no lock:
// records with a wrong checksum are passed over. A torn record at the end is cut off by the next writer. A file of
// more than 16 MiB, 262,144 records, is not read, and the next writer starts it over. Deleting the file costs time
// only. cache gc leaves it.
package encoders
