"""Run a captured step again in a fresh job of the same layout, and compare its gradients bit for bit."""
