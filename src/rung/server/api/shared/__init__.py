"""Fields that several families of endpoints have in common."""
