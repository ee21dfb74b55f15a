"""The command line of causal-bpf: one module per verb, and `main`, which chooses among them."""
