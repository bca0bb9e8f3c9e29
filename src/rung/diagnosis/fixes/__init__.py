"""Choose what to do about a cause: fixes, in which order, in which words, for which card."""
