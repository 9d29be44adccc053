"""The sections of the report: one file each, which makes a block of what one incident says of its subject."""
