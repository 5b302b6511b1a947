package vfs

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace makes content that of the file called name, in a folder that it makes if need be. Whoever reads the file meanwhile sees the
// old content or the new one, never a part.
func Replace(name string, content []byte) error {
	dir, base := filepath.Split(name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, base+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}
