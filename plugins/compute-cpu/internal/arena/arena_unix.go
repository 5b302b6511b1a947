//go:build unix

package arena

import "golang.org/x/sys/unix"

func allocate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func free(b []byte) error { return unix.Munmap(b) }
