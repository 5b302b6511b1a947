//go:build !race

package token_test

import "time"

// slow is what only a quadratic loop takes for a text of some thousand characters.
const slow = time.Second / 2
