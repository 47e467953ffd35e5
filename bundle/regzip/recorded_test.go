package regzip_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/kkbundle/kkbundle/bundle/regzip"
)

// TestGenerationGrowsWithTheEncoders compares the list of encoders with that of its generation.
func TestGenerationGrowsWithTheEncoders(t *testing.T) {
	lists := map[uint32]string{1: "b0e84883f1d202d2"}
	ids := slices.Sorted(maps.Keys(recorded()))
	sum := sha256.Sum256(fmt.Append(nil, ids))
	if got := hex.EncodeToString(sum[:8]); got != lists[regzip.Generation] {
		t.Errorf("generation %d has the encoders %v, %s; for others raise Generation and add the new list here",
			regzip.Generation, ids, got)
	}
	for _, id := range ids {
		if len(id) > 24 || !id.Known() {
			t.Errorf("%s: the record of package encoders has 24 bytes for known encoders", id)
		}
	}
}

// recorded returns the beginning of the digest of each encoder's output for the samples text, mixed and noise.
func recorded() map[regzip.ID]string {
	return map[regzip.ID]string{
		"gnu/1":           "b8a659b9fa885c06",
		"gnu/2":           "13f97f95bbad21b5",
		"gnu/3":           "1c69db00537e5ed9",
		"gnu/4":           "403d08dbb6d1014b",
		"gnu/5":           "17e53149ac4cb400",
		"gnu/6":           "f9f749badb51e51d",
		"gnu/7":           "46f92ca19268653f",
		"gnu/8":           "ff97668a9d168c8d",
		"gnu/9":           "ff97668a9d168c8d",
		"go1.26/1":        "af40d70f75a5f39c",
		"go1.26/2":        "c4755033f1d1f0c6",
		"go1.26/3":        "0e812698b2b32c71",
		"go1.26/4":        "b49834a1ea82fc51",
		"go1.26/5":        "1494b76fe73d4cf3",
		"go1.26/6":        "e056258dd716ba21",
		"go1.26/7":        "4e0593767bc5479f",
		"go1.26/8":        "f199ac24d5782f3a",
		"go1.26/9":        "f199ac24d5782f3a",
		"klauspost1.17/1": "f15576c515e2c635",
		"klauspost1.17/2": "855ee12b580b28a7",
		"klauspost1.17/3": "b4d0836d9f08e6e2",
		"klauspost1.17/4": "5b5d6bf8e348ad95",
		"klauspost1.17/5": "ba76dee49c62f36d",
		"klauspost1.17/6": "29261aa2c9a12c20",
		"klauspost1.17/7": "3dd5f89902366688",
		"klauspost1.17/8": "097def85b08ecbe6",
		"klauspost1.17/9": "b3a261b11509fbfe",
		"klauspost1.20/1": "580cf7d0ae6d8071",
		"klauspost1.20/2": "09e5085cf5780d64",
		"klauspost1.20/3": "2069aef05e0c3045",
		"klauspost1.20/4": "6aeaa17851ac50da",
		"klauspost1.20/5": "93f385867e615574",
		"klauspost1.20/6": "6cf5e6bb94555882",
		"klauspost1.20/7": "d4f91c16cd84aa5b",
		"klauspost1.20/8": "d37e211059cbf7fe",
		"klauspost1.20/9": "981e71f190eb854f",
		"pgzip1.17/1":     "d5e35465f7d37bdd",
		"pgzip1.17/2":     "bb9abe7b087550da",
		"pgzip1.17/3":     "914bebb022e04543",
		"pgzip1.17/4":     "3848d92fce9badd6",
		"pgzip1.17/5":     "d1765506fd315ece",
		"pgzip1.17/6":     "afe18483e2852c2f",
		"pgzip1.17/7":     "25e61b20c6295053",
		"pgzip1.17/8":     "7d6b2074331b7afa",
		"pgzip1.17/9":     "433793e77366b3c5",
		"pgzip1.20/1":     "fff8598f35cf1b31",
		"pgzip1.20/2":     "8b86c0c1fa1c463d",
		"pgzip1.20/3":     "a397c3819ca22e72",
		"pgzip1.20/4":     "a4c29685fcba04ed",
		"pgzip1.20/5":     "3ba19a7bf2fe0bae",
		"pgzip1.20/6":     "6d6e485382aa2b76",
		"pgzip1.20/7":     "a536271d04599c3c",
		"pgzip1.20/8":     "34a42272e1b20478",
		"pgzip1.20/9":     "8703bcb517b6aa78",
		"pigz/1":          "366fb5a927a10097",
		"pigz/2":          "b5220aa3dfc9517a",
		"pigz/3":          "5debf371d1642b1c",
		"pigz/4":          "3a0a5ea8fc12f0ae",
		"pigz/5":          "ca5381d635803ef6",
		"pigz/6":          "47d93e8abdb8c0f1",
		"pigz/7":          "c0d248de90b15123",
		"pigz/8":          "117d175edf86378e",
		"pigz/9":          "117d175edf86378e",
		"zlib/1":          "e025552a9f8dd59d",
		"zlib/2":          "998a32437c2a9549",
		"zlib/3":          "bdf4a3e1afc4a868",
		"zlib/4":          "0ba417dbcc85e430",
		"zlib/5":          "ba710a4c87be9083",
		"zlib/6":          "47feff438805dd52",
		"zlib/7":          "b366f57a9c8f8d3f",
		"zlib/8":          "809c6192eafe6766",
		"zlib/9":          "809c6192eafe6766",
	}
}
