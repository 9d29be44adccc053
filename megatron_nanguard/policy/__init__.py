"""What is done about an incident; the same on all ranks, since it is decided from exchanged integers alone."""
