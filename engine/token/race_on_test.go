//go:build race

package token_test

import "time"

const slow = 5 * time.Second // the detector makes everything ten times slower
