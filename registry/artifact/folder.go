package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"

	"github.com/bigmoe/bigmoe/sdk/fault"
)

// Folder reads an OCI layout folder, or any folder that keeps blobs as one does. Links, pipes and devices in it are
// refused: it may have come out of an archive.
type Folder struct{ Root *os.Root }

var _ content.Fetcher = Folder{}

const maxIndexBytes = 4 << 20

// BlobPath returns where a folder keeps the content with a digest, which must have passed [CheckDigest].
func BlobPath(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// Open opens a file of the folder. It may be replaced by another one meanwhile, as writers of a store do.
func (f Folder) Open(name string) (*os.File, error) {
	for range 10 {
		before, err := f.Root.Lstat(name)
		if err != nil {
			return nil, err
		}
		if !before.Mode().IsRegular() {
			return nil, fault.Corruptf("%s: expected a regular file, found %v", path.Join(f.Root.Name(), name), before.Mode().Type())
		}
		file, err := f.Root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that took its place does not block
		if err != nil {
			return nil, err
		}
		if now, err := file.Stat(); err == nil && os.SameFile(before, now) {
			return file, nil
		}
		file.Close()
	}
	return nil, fault.Corruptf("%s: replaced again and again while it was opened", path.Join(f.Root.Name(), name))
}

// Fetch opens the blob with the digest of d.
func (f Folder) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	file, err := f.Open(BlobPath(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", path.Join(f.Root.Name(), BlobPath(d.Digest)), errdef.ErrNotFound)
	}
	return file, err
}

// Describe returns a descriptor of the blob with that digest. Its size is that of the file.
func (f Folder) Describe(d digest.Digest) (ocispec.Descriptor, error) {
	if err := CheckDigest(d); err != nil {
		return ocispec.Descriptor{}, err
	}
	info, err := f.Root.Lstat(BlobPath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return ocispec.Descriptor{}, fmt.Errorf("%s: %w", path.Join(f.Root.Name(), BlobPath(d)), errdef.ErrNotFound)
	}
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{Digest: d, Size: info.Size()}, nil
}

// Resolve returns what a tag or digest of the layout stands for.
func (f Folder) Resolve(_ context.Context, selector string) (ocispec.Descriptor, error) {
	if d, err := digest.Parse(selector); err == nil {
		return f.Describe(d)
	}
	file, err := f.Open(ocispec.ImageIndexFile)
	if err != nil {
		return ocispec.Descriptor{}, fault.As(fault.User, fmt.Errorf("not an OCI layout folder: %w", err))
	}
	defer file.Close()
	var index ocispec.Index
	if err := json.NewDecoder(io.LimitReader(file, maxIndexBytes)).Decode(&index); err != nil {
		return ocispec.Descriptor{}, fault.Corruptf("%s: %w", file.Name(), err)
	}
	var found *ocispec.Descriptor
	for _, m := range index.Manifests {
		if m.Annotations[ocispec.AnnotationRefName] != selector {
			continue
		}
		if found != nil && found.Digest != m.Digest {
			return ocispec.Descriptor{}, fault.Corruptf("%s: tag %s is both %s and %s", file.Name(), selector, found.Digest, m.Digest)
		}
		found = &m
	}
	if found == nil {
		return ocispec.Descriptor{}, errdef.ErrNotFound
	}
	return *found, nil
}

// Turn waits until it is this process's turn to change the folder that the file at path is in: until nobody else has that
// file locked. The turn ends when it is closed.
func Turn(ctx context.Context, path string) (io.Closer, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() { // to open a pipe would wait for ever
		return nil, fault.Corruptf("%s: expected a regular file, found %v", path, info.Mode().Type())
	}
	turn := flock.New(path)
	if _, err := turn.TryLockContext(ctx, 20*time.Millisecond); err != nil {
		turn.Close()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for another process that changes %s: %w", filepath.Dir(path), context.Cause(ctx))
		}
		return nil, fault.As(fault.User, err)
	}
	return turn, nil
}
