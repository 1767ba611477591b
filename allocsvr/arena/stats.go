package arena

// Stats of an arena.
type Stats struct {
	Keys int64
	// Bytes that hold keys, Reserved of the file, Limit of it.
	Bytes, Reserved, Limit int64
	// IndexBytes is about what finding the keys takes in ordinary memory.
	IndexBytes int64
}

// Stats sums over the sections; it takes each one's lock for a moment.
func (a *Arena) Stats() Stats {
	m := a.mem.Load()
	if m == nil {
		return Stats{Limit: a.opts.MaxBytes}
	}
	return m.stats()
}

func (m *memory) stats() Stats {
	st := Stats{Limit: m.pool.bytesMax}
	for i := range m.pages {
		st.IndexBytes += m.pages[i].bytes()
	}
	for _, s := range m.sections {
		st.Keys += s.keys.Load()
		s.mu.Lock()
		st.IndexBytes += int64(len(s.pages)) * pageMetaBytes
		for _, meta := range s.pages {
			if meta.marks != nil {
				st.IndexBytes += cellsPerPage / 2
			}
		}
		for i := range s.names {
			for _, t := range s.names[i].all() {
				if t != nil {
					st.IndexBytes += t.bytes()
				}
			}
		}
		s.mu.Unlock()
	}
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	st.Bytes = int64(m.pool.used) * pageBytes
	st.Reserved = m.pool.front + int64(len(m.pool.extents))*extentBytes
	return st
}

// pageMetaBytes is about what a pageMeta and its place in the map take.
const pageMetaBytes = 88
