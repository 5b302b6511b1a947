//go:build unix

package drive

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// device returns a name of the drive that file is on, or "".
func device(file string) string {
	var st unix.Stat_t
	if unix.Stat(file, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
}
