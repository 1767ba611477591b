package node

// Forwards reports whether the Redis port ever had a key served over the network.
func (a *Alloc) Forwards() bool {
	a.forward.mu.Lock()
	defer a.forward.mu.Unlock()
	return a.forward.c != nil
}
