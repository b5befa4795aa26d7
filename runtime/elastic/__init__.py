"""A plan that changes while it trains: workers that outlive it, and who tells them to."""
