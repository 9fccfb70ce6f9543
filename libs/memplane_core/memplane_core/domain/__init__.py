"""Pure rules of memory: no I/O, and no clock but an argument."""
