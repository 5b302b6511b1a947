package main

import (
	"math"
	"slices"
)

// Roles of the parts of a bank.
const (
	roleGate = 1
	roleUp   = 2
	roleDown = 3
)

func route(o *op) step {
	o.only(1, 0)
	logits, n := o.input(0)
	k, normalize := o.integer("top_k", 0), o.flag("normalize")
	floor, factor := o.number("norm_floor", 0), o.number("scale", 1)
	o.choice("gating", "softmax")
	if groups := o.integer("groups", 1); groups != 1 {
		o.lack("routing by groups")
	}
	if used := o.integer("groups_used", 0); used != 0 {
		o.lack("routing by groups")
	}
	if k <= 0 || k > n {
		o.fail(bugf("op route: %d of %d experts", k, n))
		return nil
	}
	ids, weights := o.define(0, k), o.define(1, k)
	return func(e *evaluation) error {
		out, w := e.make(ids), e.make(weights)
		for t := range out {
			row := e.values[logits][t]
			order, top, sum := make([]int, n), math.Inf(-1), 0.0
			for i, l := range row {
				if math.IsNaN(float64(l)) || math.IsInf(float64(l), 0) {
					return refuse(corrupt, "router logits are not finite")
				}
				order[i], top = i, max(top, float64(l))
			}
			for _, l := range row {
				sum += math.Exp(float64(l) - top)
			}
			slices.SortStableFunc(order, func(a, b int) int { // equal ones: the smaller id first
				switch {
				case row[a] > row[b]:
					return -1
				case row[a] < row[b]:
					return 1
				}
				return 0
			})
			var chosen float64
			for j, id := range order[:k] {
				out[t][j] = float32(id)
				w[t][j] = float32(math.Exp(float64(row[id])-top) / sum)
				chosen += float64(w[t][j])
			}
			for j := range w[t] {
				if normalize {
					w[t][j] = float32(float64(w[t][j]) / max(chosen, floor))
				}
				w[t][j] *= float32(factor)
			}
		}
		return nil
	}
}

func experts(o *op) step {
	o.only(3, 0)
	x, n := o.input(0)
	ids, k := o.input(1)
	weights, _ := o.input(2)
	o.choice("activation", "silu")
	if o.number("limit", 0) != 0 {
		o.lack("a limit")
	}
	b := o.m.banks[o.bank]
	if b == nil {
		o.fail(bugf("op experts: no bank %q", o.bank))
		return nil
	}
	if len(b.parts) != 3 || b.parts[0].role != roleGate || b.parts[1].role != roleUp || b.parts[2].role != roleDown {
		o.lack("a bank of other parts than gate, up and down")
		return nil
	}
	if b.parts[0].in != uint64(n) || b.parts[1].in != uint64(n) || b.parts[2].out != uint64(n) || b.parts[1].out != b.parts[0].out ||
		b.parts[2].in != b.parts[0].out {
		o.fail(bugf("op experts: bank %q does not take rows of %d", b.name, n))
		return nil
	}
	o.m.picks = max(o.m.picks, uint64(k))
	o.m.scratch += uint64(k * n)
	out := o.define(0, n)
	return func(e *evaluation) error {
		y := e.make(out)
		var picked []int32
		var factors []float32
		for t := range y {
			for j, id := range e.values[ids][t] {
				picked, factors = append(picked, int32(id)), append(factors, e.values[weights][t][j])
			}
		}
		results := make([][]float64, len(picked)) // of each pick; added up in routing order
		wave, err := e.s.route(b, k, picked, factors)
		for err == nil {
			if err = e.wave(b, wave, x, k, picked, results); err != nil || !wave.more {
				break
			}
			wave, err = e.s.next()
		}
		if err != nil {
			return err
		}
		for t := range y {
			sums := make([]float64, n)
			for j := range k {
				p := t*k + j
				if results[p] == nil {
					return bugf("expert %d of bank %q was in no wave", picked[p], b.name)
				}
				for i, v := range results[p] {
					sums[i] += float64(factors[p]) * v
				}
			}
			for i, v := range sums {
				y[t][i] = float32(v)
			}
		}
		return nil
	}
}

// wave computes the experts of a wave, those that have landed first.
func (e *evaluation) wave(b *bank, w wave, x string, k int, picked []int32, results [][]float64) error {
	for _, wait := range []bool{false, true} {
		for i, s := range w.slots {
			if s == nil || !wait && !e.s.landed(s) {
				continue
			}
			w.slots[i] = nil
			if err := e.expert(b, s, x, k, picked, results); err != nil {
				return err
			}
		}
	}
	return nil
}

// expert computes one expert for every token that picked it.
func (e *evaluation) expert(b *bank, s *slot, x string, k int, picked []int32, results [][]float64) error {
	var parts [3]matrix
	for i, p := range b.parts {
		size := p.out * p.rowBytes
		if all := uint64(len(e.s.region.bytes)); s.part[i] > all || size > all-s.part[i] {
			return bugf("expert %d: part %d lies outside the region", s.expert, i)
		}
		if err := e.s.wait(s, 1<<i); err != nil {
			return err
		}
		parts[i] = matrix{typ: p.typ, in: p.in, rowBytes: p.rowBytes, data: e.s.region.bytes[s.part[i]:][:size]}
	}
	found := false
	for p, id := range picked {
		if id != s.expert {
			continue
		}
		if found = true; results[p] != nil {
			return bugf("expert %d came twice", id)
		}
		in := e.values[x][p/k]
		gate, up := make([]float64, b.parts[0].out), make([]float64, b.parts[0].out)
		parts[0].times(gate, in, 0)
		parts[1].times(up, in, 0)
		hidden := make([]float32, len(gate))
		for i, g := range gate {
			hidden[i] = float32(g / (1 + math.Exp(-g)) * up[i])
		}
		results[p] = make([]float64, b.parts[2].out)
		parts[2].times(results[p], hidden, 0)
	}
	if !found {
		return bugf("expert %d came, which nobody picked", s.expert)
	}
	return nil
}
