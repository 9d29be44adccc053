"""Renderers for text: they lay blocks out for a pipe or a terminal and know nothing about incidents."""
