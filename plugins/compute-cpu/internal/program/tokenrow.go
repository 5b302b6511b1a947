package program

import (
	"encoding/binary"

	"github.com/bigmoe/bigmoe/sdk/dtype"
	"github.com/bigmoe/bigmoe/sdk/fault"
	"github.com/bigmoe/bigmoe/sdk/plan"
)

// tokenRow looks the tokens up in a table of integers (specs/deepseek4.md 40).
func tokenRow(c *compiler) error {
	table, out := c.weightAt(0), c.out(0)
	if table.t != dtype.I32 {
		return fault.Unsupportedf("weight %q is %v, a table of ids is %v", table.name, table.t, dtype.I32)
	}
	late := c.head
	c.emit(&embedding{table, rowwise{head: c.head, cost: out.width(), row: func(m *Machine, _, i int) {
		row := table.tokenBytes(m, i, late)
		for k := range m.ints(out, i) {
			m.ints(out, i)[k] = int32(binary.LittleEndian.Uint32(row[4*k:]))
		}
	}}})
	return nil
}

// tokenBytes returns the row of the table that belongs to the token of row i; late says that row 0 is the first wanted
// token.
func (w *weight) tokenBytes(m *Machine, i int, late bool) []byte {
	if late {
		i += m.skip
	}
	if w.byRow >= 0 {
		return m.batch.Rows[w.byRow][i*w.rowBytes:][:w.rowBytes]
	}
	return w.raw[int(m.batch.Tokens[i])*w.rowBytes:][:w.rowBytes]
}

// idTables returns the weights that nothing but token_row reads: they hold integers, which no kernel multiplies.
func idTables(p *plan.Plan) map[string]bool {
	tables := map[string]bool{}
	for _, b := range p.Blocks {
		for _, op := range b.Ops {
			for _, name := range op.Weights {
				only, seen := tables[name]
				tables[name] = op.Kind == "token_row" && (only || !seen)
			}
		}
	}
	return tables
}
