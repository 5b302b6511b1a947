package memory

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	hugeBytes  = 2 << 20
	smallBytes = 64 << 20 // a region that is not worth rounding up to huge pages
)

// hugePages remembers which huge pages of a region were asked for: each is asked for once.
type hugePages struct {
	unsupported atomic.Bool
	asked       []bool         // by page; guarded by the page's stripe
	stripes     [16]sync.Mutex // page p belongs to stripe p modulo 16
}

func (h *hugePages) stripe(page uint64) *sync.Mutex { return &h.stripes[page%uint64(len(h.stripes))] }

// Huge reports whether Back can do anything.
func (m *Memory) Huge() bool { return len(m.huge.asked) > 0 && !m.huge.unsupported.Load() }

// Back gives [off, off+n), rounded outwards to 2 MiB, physical memory in huge pages where the system has them (Linux 6.1 on),
// keeping what is there. Call it before memory is used for the first time: page by page, first use and later direct reads cost
// more processor time than the reads themselves, and what streams from small pages is slower (docs/experiments/huge-pages.md).
// It is a wish: where it cannot be had, memory comes with first use as ever. So it does in regions below 64 MiB, and in
// huge pages of which something was discarded.
func (m *Memory) Back(off, n uint64) {
	h := &m.huge
	if n == 0 || off > uint64(len(m.bytes)) {
		return
	}
	end := off + min(n, uint64(len(m.bytes))-off)
	for p := off / hugeBytes; p*hugeBytes < end && p < uint64(len(h.asked)) && !h.unsupported.Load(); p++ {
		h.stripe(p).Lock() // others wait for the page: small pages that a read is filling could not be joined
		if !h.asked[p] {
			h.asked[p] = true
			if err := collapse(m.bytes[p*hugeBytes:][:hugeBytes]); errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
				h.unsupported.Store(true)
			}
		}
		h.stripe(p).Unlock()
	}
}

// splitUp notes that [off, off+n) is about to be discarded: asking again for its huge pages would bring back what neighbours gave up.
func (h *hugePages) splitUp(off, n uint64) {
	for p := off / hugeBytes; p*hugeBytes < off+n && p < uint64(len(h.asked)); p++ {
		h.stripe(p).Lock()
		h.asked[p] = true
		h.stripe(p).Unlock()
	}
}
