"""What is done about an incident, alike on all ranks because it is decided from exchanged integers alone."""
