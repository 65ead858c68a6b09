"""Files: written atomically, sealed by a checksum, and read with checks of every size and value."""
