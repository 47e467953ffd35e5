package cache

// DirOf lets tests damage entries.
func DirOf(c *Cache) string { return c.dir }
