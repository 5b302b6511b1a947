package usage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bigmoe/bigmoe/engine/vfs"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

const (
	magic   = "bigmoe usage 1\n" // with the version
	suffix  = ".usage"
	bounded = 1 << 20 // experts of a model, as in the expert store

	// MaxFiles is how many models a folder remembers.
	MaxFiles = 32
)

// Load returns the profile of the model called id, nil if there is none. What is damaged, or of a model of another shape, is an
// error.
func Load(dir, id string, shape Shape) (*Profile, error) {
	name := filepath.Join(dir, id+suffix)
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("usage profile: %w", err)
	}
	defer f.Close()
	want := len(magic) + 4*(1+len(shape)+shape.experts()) + 4
	raw, err := io.ReadAll(io.LimitReader(f, int64(want)+1))
	if err != nil {
		return nil, fmt.Errorf("usage profile: %w", err)
	}
	p, err := parse(raw, want, shape)
	if err != nil {
		return nil, fault.Corruptf("usage profile %s: %w", name, err)
	}
	return p, nil
}

func parse(raw []byte, want int, shape Shape) (*Profile, error) {
	if !strings.HasPrefix(string(raw), magic) {
		return nil, errors.New("no profile of this version")
	}
	if len(raw) != want {
		return nil, fmt.Errorf("not %d bytes long", want)
	}
	body, sum := raw[:want-4], binary.LittleEndian.Uint32(raw[want-4:])
	if crc32.ChecksumIEEE(body) != sum {
		return nil, errors.New("wrong checksum")
	}
	words := body[len(magic):]
	next := func() uint32 {
		n := binary.LittleEndian.Uint32(words)
		words = words[4:]
		return n
	}
	if n := next(); int(n) != len(shape) {
		return nil, fmt.Errorf("%d layers, the model has %d", n, len(shape))
	}
	for layer, have := range shape {
		if n := next(); int(n) != have {
			return nil, fmt.Errorf("layer %d: %d experts, the model has %d", layer, n, have)
		}
	}
	p := &Profile{shape: shape, rates: make([]float32, shape.experts())}
	for i := range p.rates {
		r := math.Float32frombits(next())
		if !(r >= 0 && r <= 1) {
			return nil, fmt.Errorf("expert %d is used %g times a token", i, r)
		}
		p.rates[i] = r
	}
	return p, nil
}

// Save keeps the profile of the model called id, which replaces an earlier one, and forgets the oldest of more than [MaxFiles]. It
// makes dir if need be.
func Save(dir, id string, p *Profile) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("usage profile: %w", err)
		}
	}()
	if p.shape.experts() > bounded {
		return fault.Unsupportedf("%d experts, at most %d are remembered", p.shape.experts(), bounded)
	}
	raw := binary.LittleEndian.AppendUint32([]byte(magic), uint32(len(p.shape)))
	for _, n := range p.shape {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(n))
	}
	for _, r := range p.rates {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(min(r, 1)))
	}
	raw = binary.LittleEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	if err := vfs.Replace(filepath.Join(dir, id+suffix), raw); err != nil {
		return err
	}
	return prune(dir)
}

// prune removes the oldest profiles.
func prune(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type file struct {
		name string
		time int64
	}
	var files []file
	for _, e := range entries {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), suffix) && info.Mode().IsRegular() {
			files = append(files, file{e.Name(), info.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(b.time, a.time) })
	for i := MaxFiles; i < len(files); i++ {
		if err := os.Remove(filepath.Join(dir, files[i].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
