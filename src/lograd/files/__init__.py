"""Files: replaced whole or not at all, sealed by a checksum, and never believed before every value is checked."""
