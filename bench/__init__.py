"""Benchmarks: ratios measured side by side in one run, on the real parts. `make bench` runs them all.

Each module measures one thing and returns its `Figure`s. Figures quote medians; what they are measured against is done
here by hand with the bare client, in the same process layout and on the same server.
"""
