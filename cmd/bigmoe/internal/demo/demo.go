// Package demo carries a small model inside the program, so that there is something to run anywhere. README.md is its
// card.
//
//	path, remove, err := demo.File(cacheDir)
//	defer remove()
//
// # Caveats
//
// Experts are streamed from a file, so the model has to become one: it is written once and found again by its checksum.
//
// # Concurrency
//
// Several processes may call File at once: the file appears whole or not at all.
package demo

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"

	"github.com/bigmoe/bigmoe/engine/vfs"
)

//go:embed bigmoe-demo.gguf
var model []byte

// Prompt is a beginning that the model was trained to go on from.
const Prompt = "Once upon a time there was a"

// CacheBytes is an expert cache of about a third of the model's 7.1 MB of experts: three times what one token needs, so
// that some experts are found in it and others have to be read.
const CacheBytes = 2560 << 10

const name = "bigmoe-demo.gguf"

// MemoryBytes is a limit for both processes that the demo fits into with room to spare: about 110 MiB were measured.
const MemoryBytes = 192 << 20

// SHA256 is the checksum of the model. It is written down here so that looking for the file does not pull the embedded
// copy into memory.
const SHA256 = "bf196278f26a869f36db22f4e6ebfb4f69acd79fb97584229a27986b3f326eb7"

// File returns the path of the model in dir, writing it if it is not there or not whole. Where dir is "" or cannot be
// written, the file goes to a folder of its own that remove takes away again.
func File(dir string) (path string, remove func(), err error) {
	if dir != "" {
		if path, err := inDir(dir); err == nil {
			return path, func() {}, nil
		}
	}
	dir, err = os.MkdirTemp("", "bigmoe-demo-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(dir) }
	if path, err = inDir(dir); err != nil {
		remove()
		return "", nil, err
	}
	return path, remove, nil
}

func inDir(dir string) (string, error) {
	path := filepath.Join(dir, name)
	if whole(path) {
		return path, nil
	}
	return path, vfs.Replace(path, model)
}

// whole reports whether path is the model, byte for byte.
func whole(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != int64(len(model)) {
		return false
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return false
	}
	return hex.EncodeToString(sum.Sum(nil)) == SHA256
}
