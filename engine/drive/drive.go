// Package drive remembers, from run to run, how many reads in flight a drive likes.
//
//	n := drive.Depth(dir, "model.gguf") // 0: not known
//	err := drive.Remember(dir, "model.gguf", 16)
//
// What is remembered is a hint in a small file per folder. One that is damaged, missing or cannot be written costs a measurement,
// never more. A drive is known by its device number, which may pass to another drive: that one has the wrong depth until
// it is measured.
//
// # Concurrency
//
// Safe for concurrent use, by several processes too: the file is replaced as a whole, and the last writer wins.
package drive

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/bigmoe/bigmoe/engine/vfs"
)

const (
	fileName  = "drives.json"
	maxBytes  = 64 << 10 // of the file; what is larger is not ours
	maxDrives = 64
	maxDepth  = 256
)

// book is the content of the file.
type book struct {
	Depths map[string]int `json:"depths"` // by device: reads in flight
}

func read(dir string) book {
	b := book{Depths: map[string]int{}}
	f, err := os.Open(filepath.Join(dir, fileName))
	if err != nil {
		return b
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	var found book
	if err != nil || len(raw) > maxBytes || json.Unmarshal(raw, &found) != nil {
		return b
	}
	for key, depth := range found.Depths {
		if depth >= 1 && depth <= maxDepth && len(b.Depths) < maxDrives {
			b.Depths[key] = depth
		}
	}
	return b
}

// Depth returns the depth remembered in dir for the drive that file is on, or 0.
func Depth(dir, file string) int {
	key := device(file)
	if dir == "" || key == "" {
		return 0
	}
	return read(dir).Depths[key]
}

// Remember keeps a depth for the drive that file is on. It makes dir if need be, and does nothing if dir is "" or the system does
// not tell drives apart.
func Remember(dir, file string, depth int) error {
	key := device(file)
	if dir == "" || key == "" {
		return nil
	}
	b := read(dir)
	if b.Depths[key] == depth {
		return nil
	}
	if len(b.Depths) >= maxDrives {
		clear(b.Depths) // they are measured again
	}
	b.Depths[key] = depth
	raw, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := vfs.Replace(filepath.Join(dir, fileName), raw); err != nil {
		return fmt.Errorf("depth of the drive: %w", err)
	}
	return nil
}
