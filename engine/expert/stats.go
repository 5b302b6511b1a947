package expert

import "time"

// Counts is a number of experts and their payload.
type Counts struct {
	Experts int64
	Bytes   int64
}

func (c *Counts) add(bytes int64) {
	c.Experts++
	c.Bytes += bytes
}

// Stats are counters since Open or the last ResetStats. Requested is always Hits plus Misses.
type Stats struct {
	Requested Counts // by Acquire, each expert once per wave
	Hits      Counts // found resident or on the way
	Misses    Counts // each caused a demand read
	Joins     Counts // hits that were still on the way: queued or being read
	Evictions Counts
	Failures  Counts // experts that could not be read

	Prefetched Counts // experts that Prefetch queued
	Used       Counts // prefetched experts that a batch then asked for
	Dropped    Counts // prefetches refused for lack of room
	Warmed     Counts // experts that Warm queued
	Cancelled  Counts // prefetched experts whose reads were taken back before the first one started

	ReadBytes     [priorities]int64 // payload read, by priority when the read started
	SyscallBytes  int64             // all bytes that reads returned, whole blocks and repeated ones included
	Reads         int64             // expert parts read, failed ones included
	Retries       int64             // system calls beyond the first, per part
	Fallbacks     int64             // parts that a direct read refused and a buffered one gave
	ReadTime      time.Duration     // sum over reads; divide by Reads for the mean
	BusyTime      time.Duration     // at least one read was under way
	InFlightPeak  int               // most reads under way at once
	Discards      int64             // slots whose memory was given back
	DiscardErrors int64             // of those, how many the system refused

	// State now, which ResetStats does not touch.
	ResidentBytes int64  // payload of all experts resident or on the way
	BackedBytes   int64  // slots that have, or had and kept, physical memory
	Mode          string // achieved: "direct", "buffered", or "mixed" when files differ
	ModeReason    string // why not direct, empty if direct
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	if s.running > 0 {
		st.BusyTime += time.Since(s.busySince)
	}
	st.ResidentBytes = s.ledger.UsedBytes()
	st.BackedBytes = s.backedBytes
	st.Mode, st.ModeReason = s.mode, s.modeReason
	return st
}

// ResetStats sets all counters to zero.
func (s *Store) ResetStats() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats, s.busySince = Stats{}, time.Now()
}
