"""What `scripts/bench` runs. Each module with a `main` is one benchmark; nothing here is part of the product."""
