package bundle

// CacheDir lets tests damage entries.
func CacheDir(c *Cache) string { return c.dir }
