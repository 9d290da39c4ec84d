"""Everything that produces evidence: run lists, records of runs, tables and plots for the docs, lab notes."""
