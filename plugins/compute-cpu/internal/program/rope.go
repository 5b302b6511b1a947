package program

import (
	"math"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// rotation is everything that decides the angles of a rope: equal ones share a table per batch.
type rotation struct {
	nRot               int
	base               float64
	scaling            string // none, linear, yarn
	factor             float64
	originalContext    int64
	betaFast, betaSlow float64
	untruncated        bool
	magnitude          float64
	inverse            bool
	divisors           int // index of a weight, -1 none
	head               bool
}

func (r *rotation) check() error {
	if r.scaling == "yarn" && (r.originalContext == 0 || r.base == 1) {
		return fault.Corruptf("yarn needs an original_context and a base other than 1")
	}
	return nil
}

// angles holds cosine and sine, times the magnitude, of every token's position.
type angles struct {
	rotation
	divisors *weight
	table    ref       // nRot/2 cosines, then nRot/2 sines
	freq     []float64 // radians per position
}

// prepare computes the frequencies (specs/gpt-oss.md Y1 to Y5; the magnitude of Y6 is an attribute).
func (a *angles) prepare() error {
	half := a.nRot / 2
	a.freq = make([]float64, half)
	var lo, hi float64
	if a.scaling == "yarn" {
		corr := func(beta float64) float64 {
			return float64(a.nRot) * math.Log(float64(a.originalContext)/(2*math.Pi*beta)) / (2 * math.Log(a.base))
		}
		lo, hi = corr(a.betaFast), corr(a.betaSlow)
		if !a.untruncated {
			lo, hi = math.Floor(lo), math.Ceil(hi)
		}
		lo, hi = max(lo, 0), min(hi, float64(a.nRot-1))
	}
	for j := range a.freq {
		f := math.Pow(a.base, -2*float64(j)/float64(a.nRot))
		if a.divisors != nil {
			f /= float64(a.divisors.vec[j])
		}
		switch a.scaling {
		case "linear":
			f /= a.factor
		case "yarn":
			keep := 1 - min(max((float64(j)-lo)/max(0.001, hi-lo), 0), 1)
			f = f/a.factor*(1-keep) + f*keep
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return fault.Corruptf("rope: frequency %d of %d is not finite", j, half)
		}
		if a.inverse {
			f = -f
		}
		a.freq[j] = f
	}
	return nil
}

// fill writes row i of the table. The product of position and frequency needs float64: at position 100000 a float32
// would be wrong in the third digit of the angle.
func (a *angles) fill(m *Machine, _, i int) {
	token := i
	if a.head {
		token += m.skip
	}
	a.write(m.floats(a.table, i), m.batch.Position+token)
}

// write fills a row of the table for a position.
func (a *angles) write(t []float32, position int) {
	pos := float64(position)
	cos, sin := t[:len(a.freq)], t[len(a.freq):]
	for j, f := range a.freq {
		s, c := math.Sincos(pos * f)
		cos[j], sin[j] = float32(c*a.magnitude), float32(s*a.magnitude)
	}
}

// rotate turns the pairs of one head by the angles of a table row.
func rotate(m *Machine, x, table []float32, interleaved bool) {
	half := len(table) / 2
	cos, sin := table[:half], table[half:]
	if !interleaved {
		m.set.RopeNeox(x, cos, sin)
		return
	}
	for j, c := range cos {
		a, b := x[2*j], x[2*j+1]
		x[2*j], x[2*j+1] = a*c-b*sin[j], a*sin[j]+b*c
	}
}
