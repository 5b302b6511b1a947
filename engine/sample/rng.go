package sample

import "math"

// twister is mt19937, the 32-bit Mersenne Twister (specs/sampling.md section 5). A fixed, simple generator is part of
// the promise that a seed gives the same text in every version.
type twister struct {
	state [624]uint32
	next  int
}

func (t *twister) seed(seed uint32) {
	t.state[0] = seed
	for i := 1; i < len(t.state); i++ {
		prev := t.state[i-1]
		t.state[i] = 1812433253*(prev^prev>>30) + uint32(i)
	}
	t.next = len(t.state)
}

func (t *twister) uint32() uint32 {
	const n, m = len(t.state), 397
	if t.next == n {
		for i := range n {
			y := t.state[i]&0x80000000 | t.state[(i+1)%n]&0x7FFFFFFF
			t.state[i] = t.state[(i+m)%n] ^ y>>1 ^ y&1*0x9908B0DF
		}
		t.next = 0
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9D2C5680
	y ^= y << 15 & 0xEFC60000
	return y ^ y>>18
}

// float64 returns a number in [0, 1) from two outputs.
func (t *twister) float64() float64 {
	low := float64(t.uint32())
	u := (low + float64(t.uint32())*(1<<32)) / (1 << 64)
	return min(u, math.Nextafter(1, 0))
}

// float32 returns a number in [0, 1) from one output.
func (t *twister) float32() float32 {
	return min(float32(t.uint32())/(1<<32), math.Nextafter32(1, 0))
}
