"""Collects traces for `causal-bpf explain`: what runs or requests of a program cost, and how often they called what."""
