//go:build cgo && amd64

package kernel

// native returns the sets beyond Reference that this build has and this CPU runs, slowest first. This is the only
// place on this architecture that decides by CPU feature.
func native() []*Set {
	var sets []*Set
	if haveAVX2() {
		sets = append(sets, &avx2)
	}
	if haveAVX512() {
		sets = append(sets, &avx512)
	}
	return sets
}
