"""Models that rung fetched: starters, and models of the hub, each in a folder named by the hash of what is in it."""
