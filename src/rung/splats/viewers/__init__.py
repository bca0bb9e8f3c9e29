"""Looking at splats in a browser: a page that holds them, and a live view."""
