package results

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	movesFile  = "../../../docs/day-two/upgrade.md"
	movesBegin = "<!-- The lab's results: make docs writes this table. -->\n"
	movesEnd   = "<!-- The end of the table. -->\n"
)

// The table of upgrades is what the results say; -update writes it.
func TestUpgradeTable(t *testing.T) {
	t.Parallel()
	all, err := Load(".")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(movesFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(data), movesBegin)
	_, after, ends := strings.Cut(rest, movesEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table", movesFile)
	}
	want := before + movesBegin + movesTable(all) + movesEnd + after
	if *update {
		if err := os.WriteFile(movesFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(data) != want {
		t.Errorf("%s is not what the results say: run make docs", movesFile)
	}
}

// A failed test proves nothing about its moves.
func TestMovesTable(t *testing.T) {
	t.Parallel()
	move := Move{
		From: "v1.34.3", To: "v1.35.4", Topology: "1 control plane, 2 nodes", Kills: 2, Seconds: 316,
		Asked: 3546, Missed: 2, Away: []int{69000, 5500},
	}
	passed := Result{Test: "TestUpgrade", Outcome: Passed, Date: "2026-11-23", Moves: []Move{move}}
	failed := Result{Test: "TestOther", Outcome: Failed, Date: "2026-11-23", Moves: []Move{move}}
	got := movesTable([]Result{passed, failed})
	const want = "| v1.34.3 | v1.35.4 | upgrade | 1 control plane, 2 nodes | done, killed 2 times | 5 min 16 s | 2 of 3546 | 69.0 s, 5.5 s | TestUpgrade, 2026-11-23 |\n"
	if !strings.HasSuffix(got, want) || strings.Contains(got, "TestOther") {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func movesTable(all []Result) string {
	var b strings.Builder
	b.WriteString("| from | to | | topology | result | time | questions missed | API away | test |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		if r.Outcome != Passed {
			continue
		}
		for _, m := range r.Moves {
			kind, result := "upgrade", "done"
			if m.Rollback {
				kind = "rollback"
			}
			if m.Kills > 0 {
				result += fmt.Sprintf(", killed %d times", m.Kills)
			}
			var away []string
			for _, ms := range m.Away {
				away = append(away, fmt.Sprintf("%.1f s", float64(ms)/1000))
			}
			switch {
			case len(away) == 0:
				away = []string{"-"}
			case len(away) > 5:
				away = []string{fmt.Sprintf("%d times, at most %.1f s", len(away), float64(slices.Max(m.Away))/1000)}
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d min %02d s | %d of %d | %s | %s, %s |\n",
				m.From, m.To, kind, m.Topology, result, m.Seconds/60, m.Seconds%60, m.Missed, m.Asked,
				strings.Join(away, ", "), r.Test, r.Date)
		}
	}
	return b.String()
}
