"""What users write: expressions, @function, output types, constraint specs. Pure data, no I/O."""
