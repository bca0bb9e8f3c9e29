"""Keep the keys of a fleet on a machine, for its owner only: certificates, tokens, and the folder of both."""
