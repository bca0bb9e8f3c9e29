"""What a machine has of a fleet, for its owner only: certificates, tokens, and the folder of both."""
