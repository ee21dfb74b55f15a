"""causal-bpf: causal profiling of unmodified Linux programs with eBPF."""

__version__ = "0.1.0"
