"""Task corpora: loading, checking, and the bundled suite."""
