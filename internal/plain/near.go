package plain

import "strings"

// Nearest returns the most similar of the known names, or "".
func Nearest(name string, known []string) string {
	best, distance := "", len(name)/3+2
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k
		}
		if d := Distance(strings.ToLower(name), strings.ToLower(k), distance); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// Distance returns how many bytes must be inserted, removed, replaced or swapped with their neighbour to make b of a.
// It returns limit if it is that far or farther.
func Distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			change := row[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(row[j]+1, next[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return min(row[len(b)], limit)
}
