"""SQL over parts: the pieces that queries share, and the expressions of users."""
