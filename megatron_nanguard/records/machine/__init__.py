"""The machines of a run: devices, their hardware readings, and what the doctor and a screening found."""
