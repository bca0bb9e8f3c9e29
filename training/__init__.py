"""How the embedded model was made; no part of the package."""
